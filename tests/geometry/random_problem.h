// Random masks of every kind, in the form of the brute force and in that of the library.
#pragma once

#include <algorithm>
#include <ostream>
#include <random>

#include "brute_force.h"
#include "geometry/mask.h"

namespace brute_force {

inline std::ostream& operator<<(std::ostream& out, const Problem& p) {
  const auto side = [&out](const std::optional<int64_t>& x) -> std::ostream& { return x ? out << *x : out << "none"; };
  out << "lq=" << p.lq << " lk=" << p.lk << " left=";
  side(p.left) << " right=";
  side(p.right) << " contexts=" << p.contexts << " targets=" << p.targets << " group=" << p.group;
  return out << (p.window_from_history_end ? " window from history end" : "");
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  /// Uniform in [low, high].
  int64_t in(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  bool chance(int percent) { return in(0, 99) < percent; }

 private:
  std::mt19937 engine_;
};

/// Lengths up to `longest`; short ones are common, since they meet every boundary.
inline int64_t random_length(Random& random, int64_t longest) {
  const int64_t kind = random.in(0, 9);
  return random.in(0, std::min<int64_t>(longest, kind < 2 ? 4 : kind < 7 ? 90 : longest));
}

inline Problem random_problem(Random& random, int64_t longest) {
  Problem p;
  p.lk = random_length(random, longest);
  const int64_t relation = random.in(0, 9);
  p.lq = relation < 4 ? p.lk : relation < 8 ? random.in(0, p.lk) : random_length(random, longest);
  const auto side = [&] { return random.in(0, random.chance(50) ? 10 : p.lk + 5); };
  if (random.chance(50)) p.left = side();
  if (random.chance(60)) {  // contexts and targets need a causal mask
    p.right = 0;
    if (random.chance(50)) p.contexts = random.in(0, random.chance(70) ? std::min<int64_t>(p.lk, 8) : p.lk);
    if (random.chance(60))
      p.targets = random.in(0, random.chance(50) ? std::min<int64_t>(p.lk - p.contexts, 20) : p.lk - p.contexts);
    if (random.chance(60)) p.group = random.chance(80) ? random.in(1, 9) : random.in(1, 400);
    p.window_from_history_end = random.chance(40);
  } else if (random.chance(60)) {
    p.right = side();
  }
  return p;
}

inline warploom::geometry::SequenceMask mask_of(const Problem& p) {
  using warploom::geometry::kUnbounded;
  warploom::geometry::SequenceMask mask;
  mask.seqlen_q = static_cast<int>(p.lq);
  mask.seqlen_k = static_cast<int>(p.lk);
  mask.left = static_cast<int>(p.left.value_or(kUnbounded));
  mask.right = static_cast<int>(p.right.value_or(kUnbounded));
  mask.num_contexts = static_cast<int>(p.contexts);
  mask.num_targets = static_cast<int>(p.targets);
  mask.target_group_size = static_cast<int>(p.group);
  mask.target_window_from_history_end = p.window_from_history_end;
  return mask;
}

}  // namespace brute_force
