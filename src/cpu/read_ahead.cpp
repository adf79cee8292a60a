#include "cpu/read_ahead.h"

#include <algorithm>

#include "cpu/backward_plan.h"

namespace warploom::cpu {
namespace {

using geometry::Interval;

/// Rows of one head of sequence b; no rows of a sequence without any, whose tensor may be null.
struct HeadRows {
  const Plan& plan;
  int64_t b;

  const Sequence& sequence() const { return plan.info.sequences[static_cast<size_t>(b)]; }
  ReadAhead::Rows query(const warploom_tensor& tensor, int64_t dim, int64_t head) const {
    if (sequence().slot_q == 0) return {};
    return {rows_view(*plan.info.call, tensor, b, sequence().first_q, head), dim};
  }
  ReadAhead::Rows key(const warploom_tensor& tensor, int64_t dim, int64_t key_head) const {
    if (sequence().slot_k == 0) return {};
    return {rows_view(*plan.info.call, tensor, b, sequence().first_k, key_head), dim};
  }
};

}  // namespace

void look_ahead(const Plan& plan, const ForwardItem& item, const ForwardItem* next, Interval next_keys,
                ReadAhead& ahead) {
  const warploom_attention& call = *plan.info.call;
  const HeadRows own = {plan, item.sequence};
  const auto add_keys = [&](const HeadRows& rows, int64_t head, Interval keys) {
    const int64_t key_head = head / plan.info.query_groups;
    ahead.add({rows.key(call.k, call.head_dim, key_head), rows.key(call.v, call.value_dim, key_head)}, keys.begin,
              keys.end);
  };
  if (!next_keys.empty()) return add_keys(own, item.head, next_keys);
  ahead.add({own.query(call.out, call.value_dim, item.head)}, item.first_row, item.first_row + item.rows);
  if (next == nullptr || next->blank) return;
  const HeadRows other = {plan, next->sequence};
  const Sequence& s = other.sequence();
  const Interval rows = {static_cast<int>(next->first_row), static_cast<int>(next->first_row + next->rows)};
  ahead.add({other.query(call.q, call.head_dim, next->head)}, rows.begin, rows.end);
  const int tile = has_interval_mask(call) ? 0 : geometry::visible_to_any(s.mask, rows).next_tile(0, kKeyTile);
  if (tile == geometry::kUnbounded) return;
  add_keys(other, next->head, key_tile(s, tile * kKeyTile));
}

void look_ahead(const Plan& plan, const BackwardPlace& place, ReadAhead& ahead) {
  const warploom_attention& call = *plan.info.call;
  const int64_t d = call.head_dim, dv = call.value_dim;
  const HeadRows own = {plan, place.sequence};
  const auto add_block = [&](const HeadRows& rows, int64_t head, int block) {
    const int64_t begin = int64_t{block} * kRowBlock;
    ahead.add({rows.query(call.q, d, head), rows.query(call.dout, dv, head)}, begin,
              std::min<int64_t>(begin + kRowBlock, rows.sequence().seqlen_q()));
  };
  const int64_t rows = own.sequence().seqlen_q(), first_row = std::min(int64_t{place.first_block} * kRowBlock, rows);
  ahead.restart((rows - first_row) * kBackwardStepsARow);
  ahead.add({own.query(call.q, d, place.query_head), own.query(call.dout, dv, place.query_head),
             own.query(call.dq, d, place.query_head)},
            first_row + kRowBlock, rows);
  if (!place.last_head) return add_block(own, place.query_head + 1, place.first_block);
  ahead.add({own.key(call.dk, d, place.key_head), own.key(call.dv, dv, place.key_head)}, place.keys.begin,
            place.keys.end);
  if (place.next_unit == nullptr) return;
  const HeadRows other = {plan, place.next_unit->first_sequence};
  const int64_t key_head = place.next_unit->first_key_head;
  const Interval keys = chunk_of_keys(plan, *place.next_unit, other.b);
  ahead.add({other.key(call.k, d, key_head), other.key(call.v, dv, key_head)}, keys.begin, keys.end);
  add_block(other, key_head * plan.info.query_groups, next_row_block(plan.info, other.sequence(), keys, 0));
}

}  // namespace warploom::cpu
