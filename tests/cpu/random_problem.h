// Random small problems over everything a call can ask for.
#pragma once

#include "problem.h"

namespace test {

class RandomProblem {
 public:
  RandomProblem(uint32_t seed, uint32_t dtype, int longest) : random_(seed), longest_(longest) {
    problem.call.dtype = dtype;
  }

  std::unique_ptr<Problem> owner = std::make_unique<Problem>();
  Problem& problem = *owner;
  std::string text;

  void make() {
    warploom_attention& c = problem.call;
    c.op = pick(2) == 0 ? WARPLOOM_HSTU : WARPLOOM_SOFTMAX;
    c.key_heads = 1 + pick(2);
    c.heads = c.key_heads * (1 + pick(2));
    c.head_dim = pick(3) == 0 ? 1 + pick(40) : 8 * (1 + pick(6));
    c.value_dim = pick(2) == 0 ? c.head_dim : 1 + pick(48);
    problem.padding = pick(2) * (1 + pick(5));
    problem.size_q = pick(4) == 0 ? 3 : 1;
    make_lengths();
    make_mask();
    make_options();
    problem.allocate(random_);
    make_intervals();
    make_bias();
  }

 private:
  int pick(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  bool delta_q() { return problem.dense_q >= 0 ? problem.dense_q != problem.dense_k : !problem.lengths_k.empty(); }

  void make_lengths() {
    warploom_attention& c = problem.call;
    const int kind = pick(4);
    if (kind == 0) {
      c.batch = pick(4);
      problem.dense_k = pick(longest_ + 1);
      problem.dense_q = pick(2) == 0 ? problem.dense_k : pick(static_cast<int>(problem.dense_k) + 1);
      if (problem.softmax() && pick(4) == 0) problem.dense_q = problem.dense_k + pick(40);
      return;
    }
    const int batch = pick(5);
    for (int b = 0; b < batch; ++b) {
      const int length = pick(6) == 0 ? 0 : pick(longest_ + 1);
      problem.lengths_q.push_back(length);
      if (kind != 1) continue;
      problem.lengths_k.push_back(length);
      problem.lengths_q.back() = pick(length + 1);
      if (problem.softmax() && pick(4) == 0) problem.lengths_q.back() = length + pick(40);
    }
    if (kind == 1 && batch == 0) problem.lengths_k.clear();
    problem.spare_rows = pick(3) == 0 ? pick(5) : 0;
  }

  int64_t slot_q(int b) { return problem.dense_q >= 0 ? problem.dense_q : problem.lengths_q[static_cast<size_t>(b)]; }
  int64_t slot_k(int b) {
    if (problem.dense_q >= 0) return problem.dense_k;
    return problem.lengths_k.empty() ? problem.lengths_q[static_cast<size_t>(b)]
                                     : problem.lengths_k[static_cast<size_t>(b)];
  }

  void make_mask() {
    warploom_attention& c = problem.call;
    const int batch = problem.dense_q >= 0 ? static_cast<int>(c.batch) : static_cast<int>(problem.lengths_q.size());
    if (pick(3) == 0) {
      for (int b = 0; b < batch; ++b) {
        const int k = pick(static_cast<int>(slot_k(b)) + 1);
        problem.used_k.push_back(k);
        const auto most = static_cast<int>(problem.softmax() ? slot_q(b) : std::min<int64_t>(slot_q(b), k));
        problem.used_q.push_back(pick(most + 1));
      }
    }
    const auto used_k = [&](int b) {
      return problem.used_k.empty() ? slot_k(b) : problem.used_k[static_cast<size_t>(b)];
    };
    mask_ = pick(6);
    if (mask_ == 1) c.right = 0;
    if (mask_ == 2) {
      c.left = pick(2) == 0 ? pick(20) : WARPLOOM_UNBOUNDED;
      c.right = pick(2) == 0 ? pick(20) : 0;
    }
    if (mask_ == 3 || mask_ == 4) {
      c.right = 0;
      if (pick(2) == 0) c.left = pick(30);
      c.target_group_size = 1 + pick(4);
      if (pick(2) == 0) c.flags |= WARPLOOM_WINDOW_FROM_HISTORY_END;
      for (int b = 0; b < batch; ++b) {
        const int contexts = pick(2) * pick(static_cast<int>(std::min<int64_t>(used_k(b), 40)) + 1);
        problem.contexts.push_back(contexts);
        problem.targets.push_back(pick(static_cast<int>(used_k(b)) - contexts + 1));
      }
    }
    text += " mask " + std::to_string(mask_);
  }

  void make_intervals() {
    if (mask_ != 5) return;
    warploom_attention& c = problem.call;
    c.interval_heads = pick(2) == 0 ? 1 : c.heads;
    c.num_intervals = pick(5);
    problem.intervals.resize(static_cast<size_t>(c.interval_heads * c.total_q * c.num_intervals * 2) + 1);
    for (size_t x = 0; x + 1 < problem.intervals.size(); x += 2) {
      problem.intervals[x] = pick(longest_ + 20) - 10;
      problem.intervals[x + 1] = problem.intervals[x] + pick(40) - 5;
    }
    c.intervals = problem.intervals.data();
  }

  void make_options() {
    warploom_attention& c = problem.call;
    if (pick(3) == 0) {
      c.flags |= WARPLOOM_HAS_ALPHA;
      c.alpha = pick(3) == 0 ? 0 : pick(2) == 0 ? -0.3 : 0.7;
    }
    if (problem.softmax()) {
      if (pick(3) == 0) c.softcap = 2;
      return;
    }
    if (pick(3) == 0) c.flags |= WARPLOOM_BIAS_NOT_SCALED;
    const int divisor = pick(3);
    if (divisor == 0) {
      c.flags |= WARPLOOM_HAS_DIVISOR;
      c.divisor = 7.5;
    }
    if (divisor == 1) {
      const int64_t rows = problem.dense_q >= 0 ? c.batch * problem.dense_q : 5 * longest_ + 10;
      for (int64_t i = 0; i <= rows; ++i) problem.divisors.push_back(static_cast<float>(1 + pick(9)));
    }
  }

  void make_bias() {
    const int kind = pick(4);
    text += " bias " + std::to_string(kind);
    const uint32_t dtype = pick(2) == 0 ? problem.call.dtype : static_cast<uint32_t>(WARPLOOM_FLOAT32);
    const uint32_t rows = pick(2) == 0 ? WARPLOOM_ROWS_KEY : WARPLOOM_ROWS_QUERY;
    if (kind == 1) problem.add_dense_bias(random_, pick(2) == 0, pick(2) == 0, rows, dtype);
    if (kind == 2) problem.add_packed_bias(random_, pick(2) == 0, rows, dtype);
    if (kind == 3) {
      const bool times = !longer_queries() && pick(2) == 0;
      const int64_t scale = int64_t{1} << pick(60);
      const bool sorted = pick(2) == 0;
      problem.add_bucketed_bias(
          random_, times && pick(3) == 0 ? 0 : 1 + pick(200), pick(2) == 0, times ? 1 + pick(160) : 0, pick(2) == 0,
          [=](std::mt19937& random, int64_t before) {
            const auto step = static_cast<int64_t>(random() % 1000) * (scale / 1000 + 1) / 300;
            return sorted ? static_cast<int64_t>(static_cast<uint64_t>(before) + static_cast<uint64_t>(step))
                          : static_cast<int64_t>(random() % 1000) * (scale / 1000 + 1) - scale / 2;
          });
    }
    if ((kind == 1 || kind == 2) && pick(3) == 0) {
      for (int64_t x = 0; x < problem.bias.size(); x += 1 + pick(4)) problem.bias.set(x, -reference::kInfinity);
    }
  }

  bool longer_queries() {
    for (int64_t b = 0; b < problem.call.batch; ++b) {
      const reference::Lengths l = reference::lengths(problem.call, b);
      if (l.q > l.k) return true;
    }
    return false;
  }

  std::mt19937 random_;
  int longest_;
  int mask_ = 0;
};

}  // namespace test
