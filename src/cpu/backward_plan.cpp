#include "cpu/backward_plan.h"

#include "cpu/simd_config.h"
#include "cpu/targets.h"
namespace warploom::cpu {
void cut_backward(const warploom_attention&, Plan&) {}
bool add_backward_kernels(int64_t, Kernels&) {
  return true;
}
}  // namespace warploom::cpu
