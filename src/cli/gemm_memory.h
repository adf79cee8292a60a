// Device memory of a matrix product that the command makes up.
#pragma once

#include "cli/devices.h"
#include "cli/gemm_case.h"
#include "gpu/driver.h"

namespace warploom::cli {

/// The operands and result of a case in a GPU's memory, and the call on them. The device's context is current for all
/// of its life.
class GemmMemory {
 public:
  explicit GemmMemory(const gpu::Driver& driver) : driver_(driver) {}
  GemmMemory(const GemmMemory&) = delete;
  GemmMemory& operator=(const GemmMemory&) = delete;
  ~GemmMemory();

  /// Random operands. Error: the driver's, when memory runs out.
  Status fill(const GemmCase& gemm, int device);

  const warploom_gemm& call() const { return call_; }
  /// Of operands and result, each once.
  double bytes() const { return bytes_; }

 private:
  Result<void*> reserve(std::int64_t bytes);
  Result<void*> copy(const void* values, std::size_t bytes);
  Result<void*> random(std::int64_t count, std::uint32_t dtype, unsigned seed);

  const gpu::Driver& driver_;
  std::vector<gpu::DevicePointer> buffers_;
  warploom_gemm call_{};
  double bytes_ = 0;
};

}  // namespace warploom::cli
