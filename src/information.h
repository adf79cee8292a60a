// What was found on this machine, as JSON for `warploom info`, warploom_info and warploom_devices.
#pragma once

#include <string>

namespace warploom {

/// An array of {"name", "kind": "cpu" | "cuda", "architecture", ...}; the CPU is always there and comes first.
std::string devices_json();

/// Versions, devices, the driver and NVRTC with every place that was searched and why a candidate was refused, the
/// cache's folders, and the settings.
std::string information_json();

}  // namespace warploom
