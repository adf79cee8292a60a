// Tensor maps for TMA: what part of a tensor a kernel's copies may name, and in which boxes.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/driver.h"
#include "ptx/tensor_map.h"
#include "warploom/status.h"

namespace warploom::gpu {

/// CUtensorMapDataType.
enum class TensorMapElement : int {
  uint8 = 0,
  uint16 = 1,
  uint32 = 2,
  int32 = 3,
  float16 = 6,
  float32 = 7,
  bfloat16 = 9
};

int bytes_of(TensorMapElement element);

/// CUtensorMapSwizzle: how the 16-byte chunks of a box's rows are exchanged; the rows are at most that long.
enum class TensorMapSwizzle : int { none = 0, bytes_32 = 1, bytes_64 = 2, bytes_128 = 3 };

/// CUtensorMapL2promotion: how much of a row L2 fetches at a time.
enum class TensorMapPromotion : int { none = 0, bytes_64 = 1, bytes_128 = 2, bytes_256 = 3 };

inline constexpr int kMaxTensorMapRank = 5;

/// A tensor and its boxes, dimension 0 innermost and contiguous.
struct TensorMapShape {
  TensorMapElement element = TensorMapElement::bfloat16;
  int rank = 0;                                            ///< 1..5
  std::array<std::uint64_t, kMaxTensorMapRank> dims{};     ///< elements, 1..2^32
  std::array<std::uint64_t, kMaxTensorMapRank> strides{};  ///< bytes; strides[0] is unused
  std::array<std::uint32_t, kMaxTensorMapRank> box{};      ///< elements, 1..256
  TensorMapSwizzle swizzle = TensorMapSwizzle::none;
  TensorMapPromotion promotion = TensorMapPromotion::bytes_256;
};

/// Whether a map of this shape over `base` exists (CUDA driver API, cuTensorMapEncodeTiled). Error: invalid_value that
/// names the rule.
Status validate_tensor_map(const TensorMapShape& shape, DevicePointer base);

/// The map. What lies outside the tensor reads as zero and is not written. `name` is what messages call the tensor.
/// Errors: those of validate_tensor_map; runtime_error for a driver without tensor maps.
Result<ptx::TensorMap> encode_tensor_map(const Driver& driver, const char* name, const TensorMapShape& shape,
                                         DevicePointer base);

}  // namespace warploom::gpu
