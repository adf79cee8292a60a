// The devices that a subcommand can run on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "warploom/attention.h"

namespace CLI {
class App;
}

namespace warploom::cli {

struct Device {
  std::string name;
  std::string architecture;
  bool cuda = false;
  int ordinal = 0;  ///< CUDA

  Execution execution() const { return {.cuda = cuda, .device_index = ordinal}; }
};

/// The CPU, then the GPUs.
Result<std::vector<Device>> devices();

/// The option `--device`.
void add_device_option(CLI::App& command, std::string& device);

/// The device that `--device` names: auto (the first GPU, else the CPU), cpu, cuda or cuda:N.
Result<Device> choose_device(const std::string& name);

}  // namespace warploom::cli
