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

namespace {

/// Where a value's fields lie, and the exponent field of 1/16.
struct Format {
  int mantissa_bits, sign_bit, sixteenth;
};

Format format_of(std::uint32_t dtype) {
  if (dtype == WARPLOOM_FLOAT8_E4M3) return {3, 7, 3};
  return dtype == WARPLOOM_BFLOAT16 ? Format{7, 15, 123} : Format{10, 15, 11};
}

/// Random values between 1/16 and 1, of either sign (zeros and repeated data run faster than real ones).
template <typename Bits>
std::vector<Bits> random_values(std::int64_t count, std::uint32_t dtype, unsigned seed) {
  const Format format = format_of(dtype);
  std::mt19937 random(seed);
  std::vector<Bits> values(static_cast<std::size_t>(std::max<std::int64_t>(1, count)));
  for (Bits& value : values) {
    const std::uint32_t bits = random();
    const std::uint32_t exponent = static_cast<std::uint32_t>(format.sixteenth) + bits % 4;
    const std::uint32_t mantissa = bits >> 8 & ((1u << format.mantissa_bits) - 1);
    value = static_cast<Bits>((bits >> 31) << format.sign_bit | exponent << format.mantissa_bits | mantissa);
  }
  return values;
}

}  // namespace

Result<void*> GemmMemory::copy(const void* values, std::size_t bytes) {
  const Result<void*> data = reserve(static_cast<std::int64_t>(bytes));
  if (!data.ok()) return data;
  Status status =
      gpu::driver_status(driver_, driver_.cuMemcpyHtoD(buffers_.back(), values, bytes), "copying to the device");
  if (!status.ok()) return status;
  return data;
}

Result<void*> GemmMemory::random(std::int64_t count, std::uint32_t dtype, unsigned seed) {
  if (dtype == WARPLOOM_FLOAT8_E4M3) {
    const std::vector<std::uint8_t> values = random_values<std::uint8_t>(count, dtype, seed);
    return copy(values.data(), values.size());
  }
  const std::vector<std::uint16_t> values = random_values<std::uint16_t>(count, dtype, seed);
  return copy(values.data(), values.size() * 2);
}

Status GemmMemory::fill(const GemmCase& gemm, int device) {
  call_ = describe_case(gemm);
  call_.device_index = device;
  const std::int64_t a_values = gemm.batch * call_.a.batch_stride, b_values = gemm.batch * call_.b.batch_stride;
  const std::int64_t out_bytes = gemm.batch * call_.out.batch_stride * gemm_value_bytes(gemm.out_dtype);
  const Result<void*> a = random(a_values, gemm.dtype, 1), b = random(b_values, gemm.dtype, 2),
                      out = reserve(out_bytes);
  for (const Result<void*>& each : {a, b, out})
    if (!each.ok()) return each.status();
  call_.a.data = *a;
  call_.b.data = *b;
  call_.out.data = *out;
  if (gemm.residual) {
    const Result<void*> c = random(out_bytes / 2, gemm.out_dtype, 3);
    if (!c.ok()) return c.status();
    call_.c.data = *c;
  }
  if (gemm.bias) {
    const Result<void*> bias = random(gemm.columns, gemm_bias_dtype(call_), 4);
    if (!bias.ok()) return bias.status();
    call_.bias = *bias;
  }
  bytes_ = gemm_value_bytes(gemm.dtype) * static_cast<double>(a_values + b_values) +
           static_cast<double>(out_bytes) * (gemm.residual ? 2 : 1);
  return {};
}

}  // namespace warploom::cli
