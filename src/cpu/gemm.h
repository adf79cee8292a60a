// Matrix products on the CPU: the front door.
#pragma once

#include <cstdint>
#include <string>

#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom::cpu {

/// A validated product; returns when its result is written. Errors: runtime_error when scratch memory cannot be had.
Status run(const warploom_gemm& call);

/// How `run` cuts this product, as a JSON object.
std::string explain(const warploom_gemm& call);

// The part of the result that is computed at a time. Its float32 operands and sums (350 KiB) stay in the second-level
// cache. Taking a value of A to float32 is shared by kTileColumns multiply-adds, one of B by kTileRows.
inline constexpr int kTileRows = 128;
inline constexpr int kTileColumns = 192;  ///< whole panels of three vectors of every target
inline constexpr int kTileDepth = 128;    ///< columns of A and B in a step

struct ProductTile {
  int64_t batch = 0, row = 0, column = 0;
  int rows = 0, columns = 0;
};

}  // namespace warploom::cpu
