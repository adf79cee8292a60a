#include "cpu/backward_plan.h"

#include <algorithm>
#include <new>
#include <thread>

#include "cpu/scratch.h"

namespace warploom::cpu {
namespace {

using geometry::Interval;

/// Keys of a unit: K twice, V, dK and dV of them stay in the second-level cache. Depends on the dimensions alone,
/// because the order of dQ's sum depends on it.
int chunk_keys(const warploom_attention& call) {
  const int64_t floats_a_key = 3 * padded_dim(call.head_dim) + 2 * padded_dim(call.value_dim);
  return floats_a_key <= 5 * 128 ? 2 * kKeyTile : kKeyTile;
}

/// Key heads of a sequence whose units take turns in the list: threads work on different heads, whose dQ nobody else
/// waits for, instead of on chunks of one head, of which each waits for the one before it. Does not depend on the
/// number of threads, because the bits of bias tables depend on the order of the units; bounds the float32 sums of dQ
/// in use.
constexpr int32_t kHeadsInTurn = 4;

int chunks_of(const Sequence& s, int keys) {
  return std::max(1, (s.seqlen_k() + keys - 1) / keys);
}

/// Rows that see a chunk of keys, times those keys: what its work is proportional to.
int64_t seeing_pairs(const CallInfo& info, const Sequence& s, Interval keys) {
  int64_t rows = has_interval_mask(*info.call) ? s.seqlen_q() : 0;
  if (rows == 0) {
    for (const Interval& part : geometry::seeing_any(s.mask, keys).parts) rows += std::max(0, part.end - part.begin);
  }
  return rows * (keys.end - keys.begin);
}

size_t backward_scratch(const warploom_attention& call, const CallInfo& info, int keys) {
  const auto d = static_cast<size_t>(padded_dim(call.head_dim)), dv = static_cast<size_t>(padded_dim(call.value_dim));
  const auto n = static_cast<size_t>(keys);
  size_t floats = n * (3 * d + 2 * dv)            // K, K^T, V^T, dK^T, dV^T
                  + kKeyTile * std::max(d, dv)    // rows before or after a transposition
                  + kRowBlock * (2 * d + 2 * dv)  // Q, dQ, dO, O
                  + 5 * kRowBlock * kKeyTile      // P, dS, bias, buckets, softcap slopes
                  + 2 * kRowBlock                 // LSE, row sums
                  + 24 * Scratch::kAlignment;
  const BiasGradient gradient = bias_gradient(call);
  if (gradient.summed()) {
    int64_t rows = 0;
    for (int64_t b = 0; b < call.batch; ++b) rows = std::max(rows, bias_rows(info, b));
    floats += static_cast<size_t>((gradient.over_heads ? 1 : info.query_groups) * rows) * n;
  }
  return floats;
}

}  // namespace

Interval chunk_of_keys(const Plan& plan, const BackwardUnit& unit, int64_t b) {
  const int64_t seqlen = plan.info.sequences[static_cast<size_t>(b)].seqlen_k();
  const int64_t begin = int64_t{unit.chunk} * plan.chunk_keys;
  return {static_cast<int>(std::min(begin, seqlen)), static_cast<int>(std::min(begin + plan.chunk_keys, seqlen))};
}

int next_row_block(const CallInfo& info, const Sequence& s, Interval keys, int block) {
  if (keys.begin == 0 || has_interval_mask(*info.call)) return block;
  return geometry::seeing_any(s.mask, keys).next_tile(block, kRowBlock);
}

BiasGradient bias_gradient(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  BiasGradient gradient;
  if (bias.kind != WARPLOOM_DENSE_BIAS && bias.kind != WARPLOOM_PACKED_BIAS) return gradient;
  gradient.wanted = bias.grad != nullptr;
  gradient.over_heads = bias.heads == 1 && call.heads > 1;
  gradient.over_sequences = bias.kind == WARPLOOM_DENSE_BIAS && bias.batch == 1 && call.batch > 1;
  return gradient;
}

int64_t bias_rows(const CallInfo& info, int64_t b) {
  const warploom_bias& bias = info.call->bias;
  if (bias.kind == WARPLOOM_DENSE_BIAS) return bias.num_rows;
  const Sequence& s = info.sequences[static_cast<size_t>(b)];
  return info.bias_rows_by_key ? s.slot_k : s.slot_q;
}

void cut_backward(const warploom_attention& call, Plan& plan) {
  const CallInfo& info = plan.info;
  const BiasGradient gradient = bias_gradient(call);
  plan.chunk_keys = chunk_keys(call);
  plan.thread_scratch = backward_scratch(call, info, plan.chunk_keys);
  if (call.batch == 0) return;
  const auto key_heads = static_cast<int32_t>(gradient.wanted && gradient.over_heads ? 1 : call.key_heads);
  const auto heads_a_unit = static_cast<int32_t>(call.key_heads / key_heads);
  std::vector<Piece> pieces;
  const auto add = [&](int64_t first, int64_t sequences, int chunks) {
    for (int32_t group = 0; group < key_heads; group += kHeadsInTurn) {
      // One piece, so that a share holds none or all of the chunks that wait for each other.
      Piece piece;
      for (int chunk = 0; chunk < chunks; ++chunk) {
        for (int32_t head = group; head < std::min(group + kHeadsInTurn, key_heads); ++head) {
          const BackwardUnit unit = {static_cast<int32_t>(first),
                                     static_cast<int32_t>(sequences),
                                     head * heads_a_unit,
                                     heads_a_unit,
                                     chunk,
                                     chunks};
          plan.backward.push_back(unit);
          ++piece.count;
          for (int64_t b = first; b < first + sequences; ++b) {
            piece.cost +=
                heads_a_unit * seeing_pairs(info, info.sequences[static_cast<size_t>(b)], chunk_of_keys(plan, unit, b));
          }
        }
      }
      pieces.push_back(piece);
    }
  };
  if (gradient.wanted && gradient.over_sequences) {
    int chunks = 1;
    for (const Sequence& s : info.sequences) chunks = std::max(chunks, chunks_of(s, plan.chunk_keys));
    add(0, call.batch, chunks);
  } else {
    // Longest first; the chunks of a head come in order.
    std::vector<std::pair<int64_t, int64_t>> order;
    for (int64_t b = 0; b < call.batch; ++b) {
      const Sequence& s = info.sequences[static_cast<size_t>(b)];
      order.push_back({-(static_cast<int64_t>(s.seqlen_q()) * s.seqlen_k()), b});
    }
    std::sort(order.begin(), order.end());
    for (const auto& [cost, b] : order) add(b, 1, chunks_of(info.sequences[static_cast<size_t>(b)], plan.chunk_keys));
  }
  cut_shares(pieces, plan);
  int64_t row_blocks = 0, longest_sums = 0, all_sums = 0;
  for (const Sequence& s : info.sequences) {
    if (chunks_of(s, plan.chunk_keys) == 1) continue;
    row_blocks += (s.seqlen_q() + kRowBlock - 1) / kRowBlock * call.heads;
    if (call.dtype == WARPLOOM_FLOAT32) continue;
    longest_sums = std::max<int64_t>(longest_sums, s.seqlen_q());
    all_sums += s.seqlen_q() * call.heads;
  }
  // Sums of dq: of the heads that threads are at and of those that take turns with them, or of all when a unit visits
  // every sequence.
  if (!(gradient.wanted && gradient.over_sequences)) {
    const int64_t heads = int64_t{plan.threads + 1} * kHeadsInTurn;
    all_sums = std::min(all_sums, longest_sums * heads * info.query_groups * heads_a_unit);
  }
  const int64_t sums = all_sums * padded_dim(call.head_dim);
  plan.shared_scratch = plan.backward.size() * sizeof(BackwardUnit) + plan.shares.size() * sizeof(size_t) +
                        static_cast<size_t>(row_blocks) * sizeof(std::atomic<int>) +
                        static_cast<size_t>(sums) * sizeof(float);
}

BackwardState::BackwardState(const Plan& plan) : plan_(plan) {
  const warploom_attention& call = *plan.info.call;
  int64_t turns = 0;
  for (const Sequence& s : plan.info.sequences) {
    first_turn_.push_back(turns);
    if (chunks_of(s, plan.chunk_keys) > 1) turns += (s.seqlen_q() + kRowBlock - 1) / kRowBlock * call.heads;
  }
  turns_.reset(new std::atomic<int>[static_cast<size_t>(turns)]);
  for (int64_t x = 0; x < turns; ++x) turns_[static_cast<size_t>(x)].store(0, std::memory_order_relaxed);
  if (call.dtype != WARPLOOM_FLOAT32) {
    query_sums_.resize(static_cast<size_t>(call.batch * call.heads));
    for (int64_t b = 0; b < call.batch; ++b) {
      const int chunks = chunks_of(plan.info.sequences[static_cast<size_t>(b)], plan.chunk_keys);
      for (int64_t n = 0; n < call.heads; ++n)
        query_sums_[static_cast<size_t>(b * call.heads + n)].chunks_left = chunks;
    }
  }
  if (call.bias.position_grad != nullptr)
    position_.resize(static_cast<size_t>(call.bias.position_heads * call.bias.num_positions));
  if (call.bias.time_grad != nullptr) time_.resize(static_cast<size_t>(call.bias.time_heads * call.bias.num_times));
}

std::atomic<int>& BackwardState::turn(int64_t b, int64_t head, int row_block) {
  const int64_t blocks = (plan_.info.sequences[static_cast<size_t>(b)].seqlen_q() + kRowBlock - 1) / kRowBlock;
  return turns_[static_cast<size_t>(first_turn_[static_cast<size_t>(b)] + head * blocks + row_block)];
}

bool BackwardState::wait_turn(int64_t b, int64_t head, int row_block, int before) {
  if (before < 0) return true;
  const std::atomic<int>& done = turn(b, head, row_block);
  // The chunk before is being computed by another thread right now, a row block or so ahead.
  for (int tries = 0; done.load(std::memory_order_acquire) != before + 1; ++tries) {
    if (failed()) return false;
    if (tries > 64) std::this_thread::yield();
  }
  return true;
}

void BackwardState::end_turn(int64_t b, int64_t head, int row_block, int chunk) {
  turn(b, head, row_block).store(chunk + 1, std::memory_order_release);
}

float* BackwardState::query_sums(int64_t b, int64_t head) {
  const warploom_attention& call = *plan_.info.call;
  const std::lock_guard lock(mutex_);
  QuerySums& sums = query_sums_[static_cast<size_t>(b * call.heads + head)];
  if (sums.block == nullptr) {
    const int64_t rows = plan_.info.sequences[static_cast<size_t>(b)].seqlen_q();
    const size_t floats = Scratch::padded(static_cast<size_t>(rows * padded_dim(call.head_dim)));
    sums.block.reset(static_cast<float*>(std::aligned_alloc(Scratch::kAlignment, floats * sizeof(float))));
    if (sums.block == nullptr) fail();
  }
  return sums.block.get();
}

void BackwardState::release_query_sums(int64_t b, int64_t head) {
  const std::lock_guard lock(mutex_);
  QuerySums& sums = query_sums_[static_cast<size_t>(b * plan_.info.call->heads + head)];
  if (--sums.chunks_left == 0) sums.block.reset();
}

void BackwardState::add_tables(size_t unit, const TableSums& sums) {
  const warploom_bias& bias = plan_.info.call->bias;
  const BackwardUnit& from = plan_.backward[unit];
  const int64_t first_head = from.first_key_head * plan_.info.query_groups;
  const auto add = [&](std::vector<double>& table, int64_t heads, int64_t entries, const std::vector<double>& part,
                       int64_t part_entries) {
    for (size_t x = 0; x < part.size(); ++x) {
      const int64_t head = heads == 1 ? 0 : first_head + static_cast<int64_t>(x) / part_entries;
      table[static_cast<size_t>(head * entries + static_cast<int64_t>(x) % part_entries)] += part[x];
    }
  };
  if (!position_.empty()) add(position_, bias.position_heads, bias.num_positions, sums.position, sums.position_entries);
  if (!time_.empty()) add(time_, bias.time_heads, bias.num_times, sums.time, bias.num_times);
}

void BackwardState::merge_tables(size_t unit, TableSums sums) {
  const std::lock_guard lock(mutex_);
  if (unit != next_unit_) {
    waiting_.emplace(unit, std::move(sums));
    return;
  }
  add_tables(next_unit_++, sums);
  for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_unit_; first = waiting_.begin()) {
    add_tables(next_unit_++, first->second);
    waiting_.erase(first);
  }
}

void BackwardState::store_tables() const {
  const warploom_bias& bias = plan_.info.call->bias;
  for (size_t x = 0; x < position_.size(); ++x) bias.position_grad[x] = static_cast<float>(position_[x]);
  for (size_t x = 0; x < time_.size(); ++x) bias.time_grad[x] = static_cast<float>(time_[x]);
}

}  // namespace warploom::cpu
