#include "cpu/plan.h"

#include <algorithm>

#include "cpu/attention.h"
#include "cpu/backward_plan.h"
#include "cpu/scratch.h"

namespace warploom::cpu {
namespace {

using geometry::Interval;

// A thread is woken for no less than this many multiply-adds: some 20 microseconds.
constexpr double kWorkPerThread = 1e6;
constexpr int64_t kBlankRows = 4096;
// Shares a thread: what the last to finish keeps the others waiting for is at most one of them.
constexpr int64_t kSharesAThread = 128;

/// Columns that rows [begin, end) see, summed over the tile's parts: what its work is proportional to.
int64_t visible_width(const CallInfo& info, const Sequence& s, Interval rows) {
  if (has_interval_mask(*info.call)) return s.seqlen_k();
  int64_t width = 0;
  for (const Interval& part : geometry::visible_to_any(s.mask, rows).parts) width += std::max(0, part.end - part.begin);
  return std::min<int64_t>(width, s.seqlen_k());
}

void describe(const warploom_attention& call, CallInfo& info) {
  info.call = &call;
  info.softmax = call.op == WARPLOOM_SOFTMAX;
  info.alpha = static_cast<float>(effective_alpha(call));
  info.softcap = static_cast<float>(call.softcap);
  info.divisor = static_cast<float>(info.softmax ? 1.0 : effective_divisor(call));
  info.bias_scale = info.softmax || (call.flags & WARPLOOM_BIAS_NOT_SCALED) != 0 ? 1.0f : info.alpha;
  if (has_score_function(call)) {
    info.score = *expression::find_score(call.score);  // validated
    info.hidden_score = kHiddenScore;
    for (size_t n = 0; n < info.score->parameters.size(); ++n) {
      info.score_parameters[n] = static_cast<float>(call.score.values[n]);
    }
  }
  info.query_groups = call.heads / call.key_heads;
  info.sequences.reserve(static_cast<size_t>(call.batch));
  for (int64_t b = 0; b < call.batch; ++b) info.sequences.push_back(sequence_at(call, b));
  if (call.bias.kind == WARPLOOM_DENSE_BIAS) info.bias_rows_by_key = effective_bias_rows(call) == WARPLOOM_ROWS_KEY;
  if (call.bias.kind == WARPLOOM_PACKED_BIAS) {
    info.bias_rows_by_key = call.bias.rows == WARPLOOM_ROWS_KEY;
    int64_t offset = 0;
    for (const Sequence& s : info.sequences) {
      info.packed_offsets.push_back(offset);
      offset += (info.bias_rows_by_key ? s.slot_k : s.slot_q) * packed_pitch(s.slot_k, call.bias.dtype);
    }
  }
  if (call.bias.kind == WARPLOOM_BUCKETED_BIAS && call.bias.time != nullptr) {
    info.time_buckets.build(call.bias.time_bucket, call.bias.num_times);
  }
}

void add_blanks(const warploom_attention& call, Plan& plan) {
  const auto add = [&](int64_t b, int64_t first, int64_t end) {
    for (; first < end; first += kBlankRows) {
      plan.blanks.push_back({b, first, std::min(kBlankRows, end - first), 0, true});
    }
  };
  for (int64_t b = 0; b < call.batch; ++b) {
    const Sequence& s = plan.info.sequences[static_cast<size_t>(b)];
    add(b, s.seqlen_q(), s.slot_q);
  }
  if (!is_dense(call)) add(call.batch, cumulative_length_q(call, call.batch), call.total_q);
}

void cut_forward(const warploom_attention& call, Plan& plan) {
  const CallInfo& info = plan.info;
  // Smaller tiles pack keys and values more often but spread few rows over many threads. Rows don't know their tile.
  int64_t tiles = 0;
  for (const Sequence& s : info.sequences) tiles += (s.seqlen_q() + kMaxQueryTile - 1) / kMaxQueryTile * call.heads;
  plan.query_tile = kMaxQueryTile;
  while (plan.query_tile > kRowBlock && tiles < 4 * plan.threads) {
    plan.query_tile /= 2;
    tiles *= 2;
  }
  // Longest first: sequences, then the tiles of a head. Tiles of a head stay together, because they read the same keys.
  struct SequenceTiles {
    int64_t cost;
    std::vector<std::pair<int64_t, ForwardItem>> tiles;  // cost and item, of head 0
  };
  std::vector<Piece> pieces;
  std::vector<SequenceTiles> sequences(info.sequences.size());
  for (int64_t b = 0; b < call.batch; ++b) {
    const Sequence& s = info.sequences[static_cast<size_t>(b)];
    SequenceTiles& sequence = sequences[static_cast<size_t>(b)];
    for (int first = 0; first < s.seqlen_q(); first += plan.query_tile) {
      const int rows = std::min(plan.query_tile, s.seqlen_q() - first);
      const int64_t cost = rows * visible_width(info, s, {first, first + rows});
      sequence.cost += cost;
      sequence.tiles.push_back({cost, {b, first, rows, 0, false}});
    }
  }
  const auto costs_more = [](const auto& a, const auto& b) { return a.cost > b.cost; };
  std::stable_sort(sequences.begin(), sequences.end(), costs_more);
  for (SequenceTiles& sequence : sequences) {
    std::stable_sort(sequence.tiles.begin(), sequence.tiles.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (int32_t head = 0; head < call.heads; ++head) {
      for (auto [cost, item] : sequence.tiles) {
        item.head = head;
        plan.forward.push_back(item);
        pieces.push_back({1, cost});
      }
    }
  }
  for (const ForwardItem& blank : plan.blanks) pieces.push_back({1, blank.rows * call.heads});
  plan.forward.insert(plan.forward.end(), plan.blanks.begin(), plan.blanks.end());
  cut_shares(pieces, plan);
}

}  // namespace

int threads_for(double multiply_adds, int asked) {
  const int wanted = asked > 0 ? asked : num_threads();
  return static_cast<int>(std::clamp(multiply_adds / kWorkPerThread, 1.0, static_cast<double>(wanted)));
}

void cut_shares(const std::vector<Piece>& pieces, Plan& plan) {
  int64_t total = 0;
  for (const Piece& piece : pieces) total += piece.cost;
  const int64_t most = total / (kSharesAThread * plan.threads);
  plan.shares.assign(1, 0);
  size_t end = 0;
  int64_t share = 0;
  const auto close = [&] {
    if (end > plan.shares.back()) plan.shares.push_back(end);
    share = 0;
  };
  for (const Piece& piece : pieces) {
    if (share + piece.cost > most) close();
    share += piece.cost;
    if (piece.cost <= most) {
      end += piece.count;
      continue;
    }
    for (size_t n = 0; n < piece.count; ++n) {
      ++end;
      close();
    }
  }
  close();
}

size_t forward_scratch(const warploom_attention& call, int query_tile) {
  const auto d = static_cast<size_t>(padded_dim(call.head_dim)), dv = static_cast<size_t>(padded_dim(call.value_dim));
  const auto tile = static_cast<size_t>(query_tile);
  return tile * (d + dv)              // Q, O
         + kKeyTile * (2 * d + dv)    // K, K^T, V
         + 3 * kRowBlock * kKeyTile   // scores, bias, buckets
         + tile * (1 + 16)            // running maximum and sums
         + 16 * Scratch::kAlignment;  // rounding of each piece, small arrays
}

Plan make_plan(const warploom_attention& call) {
  Plan plan;
  describe(call, plan.info);
  for (const Sequence& s : plan.info.sequences) {
    for (int first = 0; first < s.seqlen_q(); first += kMaxQueryTile) {
      const int rows = std::min(kMaxQueryTile, s.seqlen_q() - first);
      plan.visible_pairs += static_cast<double>(rows * visible_width(plan.info, s, {first, first + rows}) * call.heads);
    }
  }
  const double passes = call.pass == WARPLOOM_FORWARD ? 1 : 2.5;
  const double work = plan.visible_pairs * passes * static_cast<double>(call.head_dim + call.value_dim);
  plan.threads = threads_for(work, call.num_threads);
  add_blanks(call, plan);
  if (call.pass == WARPLOOM_FORWARD) {
    cut_forward(call, plan);
    plan.thread_scratch = forward_scratch(call, plan.query_tile);
    plan.shared_scratch = plan.forward.size() * sizeof(ForwardItem) + plan.shares.size() * sizeof(size_t);
  } else {
    cut_backward(call, plan);
  }
  const size_t shares = plan.shares.size() - 1;
  plan.threads = static_cast<int>(std::clamp<size_t>(shares, 1, static_cast<size_t>(plan.threads)));
  return plan;
}

BiasView bias_view(const CallInfo& info, int64_t b, int64_t head) {
  const warploom_bias& bias = info.call->bias;
  BiasView view;
  view.kind = bias.kind;
  if (bias.kind == WARPLOOM_NO_BIAS) return view;
  const Sequence& s = info.sequences[static_cast<size_t>(b)];
  if (bias.kind == WARPLOOM_BUCKETED_BIAS) {
    if (bias.position != nullptr) {
      view.position = bias.position + (bias.position_heads == 1 ? 0 : head) * bias.position_head_stride;
      view.num_positions = bias.num_positions;
    }
    if (bias.time != nullptr) {
      view.time = bias.time + (bias.time_heads == 1 ? 0 : head) * bias.time_head_stride;
      view.timestamps = bias.timestamps + s.first_k;
    }
    return view;
  }
  view.dtype = bias.dtype;
  view.row_shift = info.bias_rows_by_key ? s.mask.offset() : 0;
  int64_t offset = (bias.heads == 1 ? 0 : head) * bias.head_stride;
  if (bias.kind == WARPLOOM_DENSE_BIAS) {
    offset += (bias.batch == 1 ? 0 : b) * bias.batch_stride;
    view.row_stride = bias.row_stride;
  } else {
    offset += info.packed_offsets[static_cast<size_t>(b)];
    view.row_stride = packed_pitch(s.slot_k, bias.dtype);
  }
  view.values = static_cast<const char*>(bias.values) + offset * dtype_bytes(bias.dtype);
  return view;
}

RowsView rows_view(const warploom_attention& call, const warploom_tensor& tensor, int64_t b, int64_t first_row,
                   int64_t head) {
  const int64_t bytes = dtype_bytes(call.dtype);
  return {static_cast<char*>(tensor.data) + row_offset(call, tensor, b, first_row, 0, head) * bytes,
          tensor.row_stride * bytes, call.dtype};
}

float* lse_rows(const warploom_attention& call, int64_t b, int64_t first_row, int64_t head) {
  return call.lse + head * call.lse_head_stride + (is_dense(call) ? b * call.lse_batch_stride : first_row);
}

}  // namespace warploom::cpu
