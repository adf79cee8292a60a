// What a compiled kernel uses, read from the report that ptxas writes into the compiler's log.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace warploom::gpu {

struct KernelResources {
  bool known = false;  ///< false: the log has no report for this kernel
  int registers = 0;   ///< a thread
  int barriers = 0;
  int stack_bytes = 0;
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  int static_shared_bytes = 0;
  /// Lines that tell of a slow form, e.g. "Potential Performance Loss: wgmma.mma_async instructions are serialized".
  std::vector<std::string> performance_warnings;
};

/// Reads the report of `kernel_name` (the name in the cubin) from a log made with --ptxas-options=-v.
KernelResources parse_resources(std::string_view log, std::string_view kernel_name);

}  // namespace warploom::gpu
