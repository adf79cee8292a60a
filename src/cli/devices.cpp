#include "cli/devices.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/library_text.h"

namespace warploom::cli {

Result<std::vector<Device>> devices() {
  const Result<Json> listed = library_json(warploom_devices);
  if (!listed.ok()) return listed.status();
  std::vector<Device> result;
  int gpus = 0;
  for (const Json& entry : *listed) {
    const bool cuda = entry.value("kind", "") == "cuda";
    result.push_back({entry.value("name", ""), entry.value("architecture", ""), cuda, cuda ? gpus++ : 0});
  }
  return result;
}

void add_device_option(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "auto (a GPU if there is one), cpu, cuda or cuda:N")->capture_default_str();
}

namespace {

/// cuda or cuda:N, whether there is such a GPU or not.
bool names_gpu(const std::string& name) {
  if (name == "cuda") return true;
  return name.size() > 5 && name.rfind("cuda:", 0) == 0 && name.find_first_not_of("0123456789", 5) == std::string::npos;
}

}  // namespace

Result<Device> choose_device(const std::string& name) {
  const Result<std::vector<Device>> all = devices();
  if (!all.ok()) return all.status();
  if (name == "auto") return all->size() > 1 ? (*all)[1] : all->front();
  for (const Device& device : *all) {
    const std::string full = device.cuda ? "cuda:" + std::to_string(device.ordinal) : "cpu";
    if (name == full || (name == "cuda" && full == "cuda:0")) return device;
  }
  if (names_gpu(name)) {
    return Status::runtime_error(
        "--device " + name + ": there are " + std::to_string(all->size() - 1) +
        " GPUs that can be used; `warploom info` shows what was found and why something was refused");
  }
  return Status::invalid_value("--device " + name + " is unknown; use auto, cpu, cuda or cuda:N");
}

}  // namespace warploom::cli
