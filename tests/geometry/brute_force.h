// Which pairs of row and column are visible, straight from docs/attention.md, section 4: slow, obvious, and written
// without the code under test.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace brute_force {

struct Problem {
  int64_t lq = 0, lk = 0;
  std::optional<int64_t> left, right;  // nothing: no limit
  int64_t contexts = 0, targets = 0, group = 1;
  bool window_from_history_end = false;
};

/// Whether query row i (0 <= i < lq) sees column j.
inline bool visible(const Problem& p, int64_t i, int64_t j) {
  if (j < 0 || j >= p.lk) return false;
  const int64_t r = i + p.lk - p.lq;
  const int64_t h = p.lk - p.targets;
  if (r >= h) {
    const int64_t origin = p.window_from_history_end ? h : r;
    const bool in_window = j < h && (!p.left || j >= origin - *p.left);
    const int64_t start = h + (r - h) / p.group * p.group;
    return in_window || (start <= j && j <= r);
  }
  if (0 <= r && r < p.contexts) return j < h;
  return (!p.left || j >= r - *p.left) && (!p.right || j <= r + *p.right);
}

/// All pairs of a problem, and how many of them a rectangle holds.
class Picture {
 public:
  template <typename Visible>
  Picture(int64_t rows, int64_t columns, Visible sees)
      : rows_(rows), columns_(columns), sums_((rows + 1) * (columns + 1)) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        sums_[at(i + 1, j + 1)] = sums_[at(i, j + 1)] + sums_[at(i + 1, j)] - sums_[at(i, j)] + (sees(i, j) ? 1 : 0);
      }
    }
  }
  explicit Picture(const Problem& p) : Picture(p.lq, p.lk, [&p](int64_t i, int64_t j) { return visible(p, i, j); }) {}

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  bool sees(int64_t i, int64_t j) const { return count(i, i + 1, j, j + 1) != 0; }
  /// Visible pairs in rows [r0, r1) and columns [c0, c1), which are cut to the picture.
  int64_t count(int64_t r0, int64_t r1, int64_t c0, int64_t c1) const {
    r0 = cut(r0, rows_), r1 = cut(r1, rows_), c0 = cut(c0, columns_), c1 = cut(c1, columns_);
    if (r1 <= r0 || c1 <= c0) return 0;
    return sums_[at(r1, c1)] - sums_[at(r0, c1)] - sums_[at(r1, c0)] + sums_[at(r0, c0)];
  }

 private:
  static int64_t cut(int64_t x, int64_t limit) { return x < 0 ? 0 : x > limit ? limit : x; }
  size_t at(int64_t i, int64_t j) const { return static_cast<size_t>(i * (columns_ + 1) + j); }

  int64_t rows_, columns_;
  std::vector<int32_t> sums_;
};

}  // namespace brute_force
