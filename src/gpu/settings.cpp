#include "gpu/settings.h"

#include <cstdlib>
#include <string_view>

namespace warploom::gpu {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool is_on(const char* name) {
  const std::string value = variable(name);
  return !value.empty() && value != "0";
}

// XDG Base Directory Specification: a relative XDG_CACHE_HOME is to be ignored.
std::string default_cache_directory() {
  const std::string cache_home = variable("XDG_CACHE_HOME");
  if (cache_home.starts_with('/')) return cache_home + "/warploom";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/warploom";
}

std::vector<std::string> split_at_colons(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = text.find(':');
    if (end != 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parts;
}

}  // namespace

Settings settings_from_environment() {
  Settings settings;
  settings.cache_directory = variable("WARPLOOM_CACHE_DIR");
  if (settings.cache_directory.empty()) settings.cache_directory = default_cache_directory();
  settings.pack_directories = split_at_colons(variable("WARPLOOM_PACKS"));
  settings.keep_sources_directory = variable("WARPLOOM_KEEP_SOURCES");
  settings.verbose = is_on("WARPLOOM_VERBOSE");
  return settings;
}

Result<KernelChoice> kernel_choice() {
  const char* const value = std::getenv("WARPLOOM_KERNELS");
  const std::string_view kernels = value != nullptr ? value : "";
  if (kernels.empty() || kernels == "auto") return KernelChoice::fastest;
  if (kernels == "mma.sync") return KernelChoice::mma_sync;
  if (kernels == "unsplit") return KernelChoice::unsplit;
  return Status::runtime_error("WARPLOOM_KERNELS = " + std::string(kernels) + " is none of auto, mma.sync and unsplit");
}

bool overlaps_launches() {
  return is_on("WARPLOOM_OVERLAP_LAUNCHES");
}

}  // namespace warploom::gpu
