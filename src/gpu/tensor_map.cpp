#include "gpu/tensor_map.h"

#include <string>

namespace warploom::gpu {
namespace {

// CUtensorMapInterleave and CUtensorMapFloatOOBfill: none, and zeros.
constexpr int interleave_none = 0;
constexpr int fill_zeros = 0;

constexpr std::uint64_t max_dim = 1ull << 32;
constexpr std::uint64_t stride_limit = 1ull << 40;
constexpr std::uint32_t max_box = 256;
constexpr int alignment = 16;

Status broken(const std::string& what, std::uint64_t value, const std::string& rule) {
  return Status::invalid_value("tensor map: " + what + " = " + std::to_string(value) + " " + rule);
}

std::string indexed(const char* what, std::size_t i) {
  return std::string(what) + "[" + std::to_string(i) + "]";
}

}  // namespace

int bytes_of(TensorMapElement element) {
  switch (element) {
    case TensorMapElement::uint8:
      return 1;
    case TensorMapElement::uint16:
    case TensorMapElement::float16:
    case TensorMapElement::bfloat16:
      return 2;
    case TensorMapElement::uint32:
    case TensorMapElement::int32:
    case TensorMapElement::float32:
      return 4;
  }
  return 0;
}

Status validate_tensor_map(const TensorMapShape& shape, DevicePointer base) {
  if (shape.rank < 1 || shape.rank > kMaxTensorMapRank) {
    return Status::invalid_value("tensor map: rank = " + std::to_string(shape.rank) + " is not 1 to 5");
  }
  if (base % alignment != 0) return broken("address", base, "is not a multiple of 16 bytes; align the tensor");
  const auto rank = static_cast<std::size_t>(shape.rank);
  for (std::size_t i = 0; i < rank; ++i) {
    if (shape.dims[i] < 1 || shape.dims[i] > max_dim) {
      return broken(indexed("dims", i), shape.dims[i], "is not 1 to 2^32 elements");
    }
    if (shape.box[i] < 1 || shape.box[i] > max_box) {
      return broken(indexed("box", i), shape.box[i], "is not 1 to 256 elements");
    }
    if (i == 0) continue;
    if (shape.strides[i] % alignment != 0) {
      return broken(indexed("strides", i), shape.strides[i],
                    "is not a multiple of 16 bytes; pad the rows or pass a contiguous tensor");
    }
    if (shape.strides[i] >= stride_limit)
      return broken(indexed("strides", i), shape.strides[i], "is not below 2^40 bytes");
  }
  const std::uint64_t row_bytes = std::uint64_t{shape.box[0]} * static_cast<std::uint64_t>(bytes_of(shape.element));
  if (row_bytes % alignment != 0) {
    return broken("box[0]", shape.box[0], "elements are " + std::to_string(row_bytes) + " bytes, not a multiple of 16");
  }
  if (shape.swizzle != TensorMapSwizzle::none) {
    const std::uint64_t span = 16ull << static_cast<int>(shape.swizzle);
    if (row_bytes > span) {
      return broken("box[0]", shape.box[0],
                    "elements are " + std::to_string(row_bytes) + " bytes, more than the " + std::to_string(span) +
                        " of the swizzle");
    }
  }
  return {};
}

Result<ptx::TensorMap> encode_tensor_map(const Driver& driver, const char* name, const TensorMapShape& shape,
                                         DevicePointer base) {
  if (Status status = validate_tensor_map(shape, base); !status.ok()) {
    return Status(status.code(), std::string(name) + ": " + status.message());
  }
  if (driver.cuTensorMapEncodeTiled == nullptr) {
    return Status::runtime_error("the CUDA driver " + driver.path + " (CUDA " + cuda_version_text(driver.version) +
                                 ") has no function cuTensorMapEncodeTiled, which kernels for Hopper need; install a "
                                 "driver for CUDA 12 or newer");
  }
  ptx::TensorMap map;
  constexpr std::array<std::uint32_t, kMaxTensorMapRank> element_strides{1, 1, 1, 1, 1};
  // The driver's strides begin with dimension 1.
  const DriverResult result = driver.cuTensorMapEncodeTiled(
      &map, static_cast<int>(shape.element), static_cast<std::uint32_t>(shape.rank), base, shape.dims.data(),
      shape.strides.data() + 1, shape.box.data(), element_strides.data(), interleave_none,
      static_cast<int>(shape.swizzle), static_cast<int>(shape.promotion), fill_zeros);
  if (Status status = driver_status(driver, result, std::string("encoding the tensor map of ") + name); !status.ok()) {
    return status;
  }
  return map;
}

}  // namespace warploom::gpu
