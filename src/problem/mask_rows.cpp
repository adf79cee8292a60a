#include "problem/mask_rows.h"

#include <algorithm>
#include <array>

#include "expression/parse.h"
#include "problem/sequence.h"

namespace warploom {
namespace {

using expression::MaskFunction;
using expression::MaskSymbol;
using expression::Program;

constexpr int kRows = 64;  // at a time: a walk over the program serves them
using Rows = std::array<std::int64_t, kRows>;

void run_steps(const Program& program, std::array<Rows, expression::kMaxSlots>& slots) {
  for (const expression::Step& step : program.steps) {
    const auto slot = [&](int n) -> Rows& { return slots[static_cast<std::size_t>(std::max(n, 0))]; };
    const Rows &a = slot(step.a), &b = slot(step.b), &c = slot(step.c);
    Rows& to = slot(step.to);
    for (std::size_t x = 0; x < kRows; ++x) to[x] = expression::evaluate(step.op, a[x], b[x], c[x]);
  }
}

}  // namespace

warploom_attention with_interval_shape(const warploom_attention& call, const MaskFunction& function,
                                       const std::int32_t* intervals) {
  warploom_attention expanded = call;
  expanded.mask_function = {};
  expanded.num_contexts = expanded.num_targets = nullptr;  // they were the function's to read
  expanded.num_contexts_all = expanded.num_targets_all = -1;
  expanded.intervals = intervals;
  expanded.interval_heads = function.by_head ? call.heads : 1;
  expanded.num_intervals = function.intervals;
  return expanded;
}

warploom_attention with_intervals(const warploom_attention& call, std::vector<std::int32_t>& memory) {
  if (!has_mask_function(call)) return call;
  const MaskFunction& function = **expression::find_mask(call.mask_function);  // validated
  const Program& program = function.program;
  const int64_t heads = function.by_head ? call.heads : 1;
  memory.assign(static_cast<std::size_t>(heads * call.total_q * function.intervals * 2), 0);
  std::array<Rows, expression::kMaxSlots> slots{};
  for (const Program::Constant& constant : program.constants) {
    slots[static_cast<std::size_t>(constant.slot)].fill(static_cast<std::int64_t>(constant.value));
  }
  for (const Program::Input& input : program.parameters) {
    slots[static_cast<std::size_t>(input.slot)].fill(static_cast<std::int64_t>(call.mask_function.values[input.index]));
  }
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t b = 0; b < call.batch; ++b) {
      const Sequence s = sequence_at(call, b);
      const std::int64_t of_sequence[] = {
          0, 0,   s.mask.seqlen_q, s.mask.seqlen_k, s.mask.num_contexts, s.mask.num_targets, s.mask.history_end(),
          b, head};
      for (const Program::Input& input : program.symbols) {
        slots[static_cast<std::size_t>(input.slot)].fill(of_sequence[input.index]);
      }
      for (int first = 0; first < s.seqlen_q(); first += kRows) {
        for (const Program::Input& input : program.symbols) {
          if (input.index > MaskSymbol::key_row) continue;
          const int origin = first + (input.index == MaskSymbol::key_row ? s.mask.offset() : 0);
          for (int x = 0; x < kRows; ++x)
            slots[static_cast<std::size_t>(input.slot)][static_cast<std::size_t>(x)] = origin + x;
        }
        run_steps(program, slots);
        std::int32_t* to = memory.data() + (head * call.total_q + s.first_q + first) * function.intervals * 2;
        for (int x = 0; x < std::min(kRows, s.seqlen_q() - first); ++x) {
          for (const int slot : program.results) {
            const std::int64_t bound = slots[static_cast<std::size_t>(slot)][static_cast<std::size_t>(x)];
            *to++ = static_cast<std::int32_t>(std::clamp<std::int64_t>(bound, 0, s.seqlen_k()));
          }
        }
      }
    }
  }
  return with_interval_shape(call, function, memory.data());
}

}  // namespace warploom
