#include "cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <new>
#include <sstream>

#include "cpu/backward_plan.h"
#include "cpu/kernels.h"
#include "cpu/plan.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"
#include "problem/mask_rows.h"

namespace warploom::cpu {
namespace {

std::atomic<int> default_threads{0};

/// Scratch that a thread keeps for its next call: 4 MiB.
constexpr size_t kKeptScratch = size_t{1} << 20;

/// Shares that threads pick up one after the other.
struct Run {
  const Plan& plan;
  const Kernels& kernels;
  BackwardState* backward;  // null in forward
  size_t shares = plan.shares.size() - 1;
  std::atomic<size_t> next{0};
  std::atomic<size_t> done{0};
};

void work(void* context) {
  auto& run = *static_cast<Run*>(context);
  Scratch& scratch = Scratch::of_this_thread();
  if (!scratch.reserve(run.plan.thread_scratch)) return;  // others do the work; when none can, `done` tells
  try {
    for (size_t n; (n = run.next.fetch_add(1, std::memory_order_relaxed)) < run.shares;) {
      const size_t begin = run.plan.shares[n], end = run.plan.shares[n + 1];
      if (run.backward == nullptr) {
        run.kernels.forward(run.plan, begin, end, scratch);
      } else {
        run.kernels.backward(run.plan, *run.backward, begin, end, scratch);
        if (run.backward->failed()) return;
      }
      run.done.fetch_add(1, std::memory_order_relaxed);
    }
  } catch (const std::bad_alloc&) {
    if (run.backward != nullptr) run.backward->fail();  // others may wait for what this share would have added
    run.next.store(run.shares);
  }
  scratch.trim(kKeptScratch);
}

Status no_memory() {
  return Status::runtime_error(
      "not enough memory for the scratch buffers of an attention call; free memory or pass fewer or shorter sequences");
}

void clear_tail(const warploom_attention& call, const warploom_tensor& tensor, int64_t heads, int64_t dim,
                int64_t first, int64_t end) {
  if (first >= end) return;
  for (int64_t n = 0; n < heads; ++n) {
    const RowsView rows = rows_view(call, tensor, 0, 0, n);
    for (int64_t i = first; i < end; ++i)
      std::memset(rows.row(i), 0, static_cast<size_t>(dim * dtype_bytes(rows.dtype)));
  }
}

/// Gradients that no unit writes: of rows after the last sequence, and of a bias without sequences.
void clear_the_rest(const warploom_attention& call) {
  if (!is_dense(call)) {
    const int64_t end_q = cumulative_length_q(call, call.batch), end_k = cumulative_length_k(call, call.batch);
    clear_tail(call, call.dq, call.heads, call.head_dim, end_q, call.total_q);
    clear_tail(call, call.dk, call.key_heads, call.head_dim, end_k, call.total_k);
    clear_tail(call, call.dv, call.key_heads, call.value_dim, end_k, call.total_k);
  }
  const warploom_bias& bias = call.bias;
  if (call.batch > 0 || bias.kind != WARPLOOM_DENSE_BIAS || bias.grad == nullptr || bias.batch == 0) return;
  const int64_t bytes = dtype_bytes(bias.dtype);
  for (int64_t n = 0; n < bias.heads; ++n) {
    for (int64_t row = 0; row < bias.num_rows; ++row) {
      std::memset(static_cast<char*>(bias.grad) + (n * bias.grad_head_stride + row * bias.grad_row_stride) * bytes, 0,
                  static_cast<size_t>(bias.num_columns * bytes));
    }
  }
}

Status run_plan(const Plan& plan, const Kernels& kernels) {
  if (plan.info.call->pass == WARPLOOM_FORWARD) {
    Run run{plan, kernels, nullptr};
    run_with_helpers(plan.threads, work, &run);
    return run.done == run.shares ? Status() : no_memory();
  }
  BackwardState state(plan);
  Run run{plan, kernels, &state};
  run_with_helpers(plan.threads, work, &run);
  if (state.failed() || run.done != run.shares) return no_memory();
  state.store_tables();
  clear_the_rest(*plan.info.call);
  return {};
}

}  // namespace

Status run(const warploom_attention& call) {
  const Kernels* best = kernels();
  if (best == nullptr) return no_vectors();
  try {
    std::vector<int32_t> intervals;
    const warploom_attention expanded = with_intervals(call, intervals);
    return run_plan(make_plan(expanded), *best);
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

Status evaluate_score(const warploom_function& function, const float* z, int64_t count, float* values, float* slopes) {
  const Kernels* best = kernels();
  if (best == nullptr) return no_vectors();
  const Result<const expression::ScoreFunction*> found = expression::find_score(function);
  if (!found.ok()) return found.status();
  float parameters[expression::kMaxParameters] = {};
  for (int64_t n = 0; n < function.num_values; ++n) parameters[n] = static_cast<float>(function.values[n]);
  best->evaluate_score(**found, parameters, z, count, values, slopes);
  return {};
}

std::string explain(const warploom_attention& call) {
  std::vector<int32_t> intervals;
  const warploom_attention expanded = with_intervals(call, intervals);
  const Plan plan = make_plan(expanded);
  const bool forward = call.pass == WARPLOOM_FORWARD;
  const double products = forward ? 1 : 2.5;
  const double flops = 2 * products * plan.visible_pairs * static_cast<double>(call.head_dim + call.value_dim);
  std::ostringstream text;
  text.precision(15);  // counts are printed to the last digit
  text << R"({"backend": "cpu", "operator": ")" << (plan.info.softmax ? "softmax" : "hstu") << R"(", "pass": ")"
       << (forward ? "forward" : "backward") << R"(", "score": ")"
       << (plan.info.softmax            ? "softmax"
           : plan.info.score != nullptr ? "a user's function, interpreted"
                                        : "silu")
       << R"(", "mask": ")"
       << (has_mask_function(call)   ? "a user's function, as intervals"
           : has_interval_mask(call) ? "intervals"
                                     : "sequence")
       << R"(", "instruction_set": ")" << instruction_set() << R"(", "threads": )" << plan.threads
       << R"(, "row_block": )" << kRowBlock << R"(, "key_tile": )" << kKeyTile;
  if (forward) {
    text << R"(, "query_tile": )" << plan.query_tile << R"(, "work_items": )" << plan.forward.size();
  } else {
    text << R"(, "chunk_keys": )" << plan.chunk_keys << R"(, "work_items": )" << plan.backward.size();
  }
  text << R"(, "flops": )" << flops << R"(, "scratch_bytes_per_thread": )" << plan.thread_scratch * sizeof(float)
       << R"(, "scratch_bytes_shared": )" << plan.shared_scratch << R"(, "scratch_bytes": )"
       << plan.thread_scratch * sizeof(float) * static_cast<size_t>(plan.threads) + plan.shared_scratch << "}";
  return text.str();
}

void set_num_threads(int count) {
  default_threads.store(std::max(0, count));
}

int num_threads() {
  const int count = default_threads.load(std::memory_order_relaxed);
  return count > 0 ? count : available_processors();
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

}  // namespace warploom::cpu
