// The operators in float64, written from docs/attention.md one pair (row, column) at a time: slow, obvious, and sharing
// nothing with the back ends or with kernels/geometry. `verify` and `demo` compare with it.
//
// Beside each value stand the two numbers that the accuracy rule (docs/attention.md, section 8) needs: the bound of the
// error that the roundings of a fused 16-bit kernel can cause, and the magnitude the value would have without
// cancellation.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "warploom/warploom.h"

namespace warploom::cli {

/// One tensor of results, contiguous in the shape of the call's tensor.
struct ReferenceTensor {
  std::vector<double> value;
  std::vector<double> bound_squared;  ///< of the error from roundings, per element
  std::vector<double> magnitude;      ///< the sum of the absolute values that the element is a sum of

  explicit ReferenceTensor(std::int64_t size = 0)
      : value(static_cast<std::size_t>(size)),
        bound_squared(static_cast<std::size_t>(size)),
        magnitude(static_cast<std::size_t>(size)) {}
};

struct Reference {
  ReferenceTensor out;             ///< (Tq, H, Dv)
  ReferenceTensor lse;             ///< (H, Tq), dense (B, H, Lq); magnitude: 1 + the largest |S| of the row
  ReferenceTensor dq, dk, dv;      ///< (Tq, H, D), (Tk, Hkv, D), (Tk, Hkv, Dv)
  ReferenceTensor bias;            ///< dense (batch, heads, rows, columns), packed (heads, elements)
  ReferenceTensor position, time;  ///< (heads, entries)
};

/// Draw 0 rounds to the call's type wherever a fused kernel has to (P, dS, results); further draws scale the rows of P
/// and dS by a random factor around the rounding, as a kernel that normalises later would.
struct Rounding {
  int draw = 0;
};

/// Forward, and backward when the call's pass is backward. The call's memory is the host's and it is valid. With
/// `only_sequence` >= 0 only that sequence is computed and the rest stays 0.
Reference reference(const warploom_attention& call, std::optional<Rounding> rounding = std::nullopt,
                    std::int64_t only_sequence = -1);

/// Whether query row i of sequence b, head n, sees key column j.
bool reference_visible(const warploom_attention& call, std::int64_t b, std::int64_t n, std::int64_t i, std::int64_t j);

/// Pairs (row, column) that are visible, summed over sequences, for one head (head 0).
std::int64_t visible_pairs(const warploom_attention& call);

}  // namespace warploom::cli
