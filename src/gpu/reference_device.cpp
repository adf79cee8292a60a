#include "gpu/reference_device.h"

#include <array>

#include "problem/message.h"

namespace warploom::gpu {

Architecture compile_architecture(const DeviceInfo& device) {
  return device.architecture(/*specific=*/device.major == 9);
}

Result<DeviceInfo> reference_device(const Architecture& architecture) {
  // CUDA C++ Programming Guide, "Technical specifications per compute capability", and the vendor's pages for L2 and
  // SMs.
  struct Known {
    int major, minor;
    const char* name;
    int sms, block_kib, sm_kib, l2_mib;
  };
  constexpr std::array<Known, 6> kKnown = {{{8, 0, "A100", 108, 163, 164, 40},
                                            {8, 6, "RTX 3090", 82, 99, 100, 6},
                                            {8, 9, "RTX 4090", 128, 99, 100, 72},
                                            {9, 0, "H200", 132, 227, 228, 50},
                                            {10, 0, "B200", 148, 227, 228, 126},
                                            {12, 0, "RTX 5090", 170, 99, 100, 96}}};
  for (const Known& known : kKnown) {
    if (known.major != architecture.major || known.minor != architecture.minor) continue;
    DeviceInfo device;
    device.name = known.name;
    device.major = known.major;
    device.minor = known.minor;
    device.sm_count = known.sms;
    device.shared_bytes_per_block = known.block_kib * 1024;
    device.shared_bytes_per_sm = known.sm_kib * 1024;
    device.registers_per_sm = 65536;
    device.l2_bytes = known.l2_mib * 1024 * 1024;
    return device;
  }
  return Status::invalid_value(message("architecture ", to_string(architecture),
                                       " is not known; use sm_80, sm_86, sm_89, sm_90a, sm_100 or sm_120"));
}

}  // namespace warploom::gpu
