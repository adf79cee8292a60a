// Which compiled instruction set this processor gets.
#include <atomic>

#include "cpu/attention.h"
#include "cpu/simd_config.h"
#include "cpu/targets.h"

namespace warploom::cpu {
namespace {

#if HWY_ARCH_X86
bool has_sse4() {
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes");
}
bool has_avx2() {
  return has_sse4() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
bool has_avx3() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd");
}
#endif

struct Table {
  Kernels targets[3];
  int count = 0;

  Table() {
#if HWY_ARCH_X86
    if (has_avx3()) add("AVX3", HWY_AVX3);
    if (has_avx2()) add("AVX2", HWY_AVX2);
    if (has_sse4()) add("SSE4", HWY_SSE4);
#else
    add("NEON", HWY_STATIC_TARGET);
#endif
  }

  void add(const char* name, int64_t target) {
    Kernels& kernels = targets[count];
    kernels.name = name;
    if (add_forward_kernels(target, kernels) && add_backward_kernels(target, kernels) &&
        add_gemm_kernels(target, kernels)) {
      ++count;
    }
  }
};

const Table& table() {
  static const Table built;
  return built;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels* kernels() {
  if (const Kernels* forced = chosen.load(std::memory_order_relaxed)) return forced;
  return table().count > 0 ? &table().targets[0] : nullptr;
}

Status no_vectors() {
  return Status::runtime_error("this processor lacks SSE4.2, which the CPU back end needs at least");
}

int supported_targets(const Kernels** targets, int capacity) {
  int count = 0;
  for (; count < table().count && count < capacity; ++count) targets[count] = &table().targets[count];
  return count;
}

void use_target(const Kernels* target) {
  chosen.store(target);
}

std::string instruction_set() {
  return kernels() != nullptr ? kernels()->name : "none";
}

}  // namespace warploom::cpu
