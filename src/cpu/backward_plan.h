// The backward pass's units of work and what they share.
//
// A unit holds some keys of one key head of one sequence and visits the query rows that see them: dK and dV stay with
// it, dQ is the sum of what each chunk of keys adds. That sum has one order whoever computes it: for every row block
// the chunks add one after the other by turns (Turns below). Units are handed out in the order of the list, in which a
// chunk comes after the chunks it waits for, so a unit never waits for one that nobody has begun.
#pragma once

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cpu/plan.h"

namespace warploom::cpu {

/// Fills in the plan's backward part.
void cut_backward(const warploom_attention& call, Plan& plan);

/// A unit's keys of sequence b; empty when the sequence ends before its chunk.
geometry::Interval chunk_of_keys(const Plan& plan, const BackwardUnit& unit, int64_t b);

/// The first row block from `block` on that a chunk of keys visits; kUnbounded or one past the end when there is none.
/// The first chunk visits every block: one from which no key is seen has zeros for its dQ.
int next_row_block(const CallInfo& info, const Sequence& s, geometry::Interval keys, int block);

/// How the gradient of a dense or packed bias is made.
struct BiasGradient {
  bool wanted = false;
  bool over_heads = false;      ///< one head's gradient sums those of all
  bool over_sequences = false;  ///< one sequence's gradient sums those of all
  bool summed() const { return wanted && (over_heads || over_sequences); }
};

BiasGradient bias_gradient(const warploom_attention& call);

/// Rows of a dense or packed bias that sequence b has.
int64_t bias_rows(const CallInfo& info, int64_t b);

/// A unit's sums for the bucketed tables, one per query head of the unit.
struct TableSums {
  int64_t position_entries = 0;        ///< leading entries of the position table that the unit can reach
  std::vector<double> position, time;  ///< [heads of the unit][position_entries or num_times]
};

/// What the units of one call share.
class BackwardState {
 public:
  /// Throws std::bad_alloc.
  explicit BackwardState(const Plan& plan);

  /// Waits until chunk `before` (-1: none) of this sequence has added its part to the rows; false when the call failed.
  bool wait_turn(int64_t b, int64_t head, int row_block, int before);
  void end_turn(int64_t b, int64_t head, int row_block, int chunk);

  /// Float32 sums of dq, (seqlen_q, padded head_dim), of a sequence of several chunks whose dq is a 16-bit type; null
  /// (and the call has failed) when there is no memory.
  float* query_sums(int64_t b, int64_t head);
  void release_query_sums(int64_t b, int64_t head);

  /// Adds a unit's table sums to the whole, in the order of the units whatever the order of the calls.
  void merge_tables(size_t unit, TableSums sums);
  void store_tables() const;

  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  void fail() { failed_.store(true, std::memory_order_relaxed); }

 private:
  struct Free {
    void operator()(float* block) const { std::free(block); }
  };
  struct QuerySums {
    std::unique_ptr<float, Free> block;
    int chunks_left = 0;
  };

  std::atomic<int>& turn(int64_t b, int64_t head, int row_block);
  void add_tables(size_t unit, const TableSums& sums);

  const Plan& plan_;
  std::atomic<bool> failed_{false};
  std::vector<int64_t> first_turn_;  // per sequence; turns are [head][row block]
  std::unique_ptr<std::atomic<int>[]> turns_;
  std::mutex mutex_;
  std::vector<QuerySums> query_sums_;  // [sequence][head], only with a 16-bit dq
  std::map<size_t, TableSums> waiting_;
  size_t next_unit_ = 0;
  std::vector<double> position_, time_;
};

}  // namespace warploom::cpu
