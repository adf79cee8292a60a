#include "cli/gemm_memory.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "problem/gemm.h"

namespace warploom::cli {

GemmMemory::~GemmMemory() {
  for (const gpu::DevicePointer buffer : buffers_) driver_.cuMemFree(buffer);
}

Result<void*> GemmMemory::reserve(std::int64_t bytes) {
  gpu::DevicePointer address = 0;
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(16, bytes));
  Status status = gpu::driver_status(driver_, driver_.cuMemAlloc(&address, size), "allocating device memory");
  if (!status.ok()) return status;
  buffers_.push_back(address);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver names device memory by number
  return reinterpret_cast<void*>(address);
}

/// `count` random 16-bit values between -1 and 1 (zeros and repeated data run faster than real ones).
Result<void*> GemmMemory::random(std::int64_t count, bool bfloat16, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(std::max<std::int64_t>(1, count)));
  // Any sign and mantissa; exponents that make values between 1/16 and 1.
  for (std::uint16_t& value : values) {
    const std::uint32_t bits = random();
    const std::uint32_t below_one = bfloat16 ? (123 + bits % 4) << 7 : (11 + bits % 4) << 10;
    const std::uint32_t mantissa = bits >> 8 & (bfloat16 ? 0x7Fu : 0x3FFu);
    value = static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | below_one | mantissa);
  }
  const Result<void*> data = reserve(static_cast<std::int64_t>(values.size()) * 2);
  if (!data.ok()) return data;
  Status status = gpu::driver_status(driver_, driver_.cuMemcpyHtoD(buffers_.back(), values.data(), values.size() * 2),
                                     "copying to the device");
  if (!status.ok()) return status;
  return data;
}

Status GemmMemory::fill(const GemmCase& gemm, int device) {
  call_ = describe_case(gemm);
  call_.device_index = device;
  const std::int64_t a_values = gemm.batch * call_.a.batch_stride, b_values = gemm.batch * call_.b.batch_stride;
  const std::int64_t out_bytes = gemm.batch * call_.out.batch_stride * gemm_value_bytes(gemm.out_dtype);
  const bool bfloat16 = gemm.dtype == WARPLOOM_BFLOAT16;
  const Result<void*> a = random(a_values, bfloat16, 1), b = random(b_values, bfloat16, 2), out = reserve(out_bytes);
  for (const Result<void*>& each : {a, b, out})
    if (!each.ok()) return each.status();
  call_.a.data = *a;
  call_.b.data = *b;
  call_.out.data = *out;
  if (gemm.residual) {
    const Result<void*> c = random(out_bytes / 2, gemm.out_dtype == WARPLOOM_BFLOAT16, 3);
    if (!c.ok()) return c.status();
    call_.c.data = *c;
  }
  if (gemm.bias) {
    const Result<void*> bias = random(padded_columns(gemm.columns), bfloat16, 4);
    if (!bias.ok()) return bias.status();
    call_.bias = *bias;
  }
  bytes_ = 2.0 * static_cast<double>(a_values + b_values) + static_cast<double>(out_bytes) * (gemm.residual ? 2 : 1);
  return {};
}

}  // namespace warploom::cli
