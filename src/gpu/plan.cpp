#include "gpu/plan.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "problem/message.h"

namespace warploom::gpu {

std::string describe(const GpuPlan& plan, const warploom_attention& call, const DeviceInfo& device) {
  nlohmann::json json;
  json["backend"] = "cuda";
  json["device"] = device.name;
  json["architecture"] = to_string(plan.architecture);
  json["scratch_bytes"] = plan.scratch_bytes;
  nlohmann::json launches = nlohmann::json::array();
  for (int n = 0; n < plan.launch_count; ++n) {
    const PlannedLaunch& launch = plan.launches[static_cast<std::size_t>(n)];
    launches.push_back({{"kernel", message(launch.family->name, ", ", launch.family->source)},
                        {"ctas", launch.ctas},
                        {"threads", launch.threads},
                        {"shared_memory_bytes", launch.shared_bytes}});
  }
  json["launches"] = launches;
  plan.describe(plan, call, device, json);
  return json.dump();
}

Status check_grid(long long ctas, int tile_rows) {
  if (ctas <= std::numeric_limits<int>::max()) return {};
  return Status::runtime_error(
      message("the batch has ", ctas, " tiles of ", tile_rows, " rows; one launch takes 2147483647. Split the batch"));
}

}  // namespace warploom::gpu
