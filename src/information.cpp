#include "information.h"

#include <nlohmann/json.hpp>

#include "cpu/attention.h"
#include "gpu/compiler.h"
#include "gpu/driver.h"
#include "gpu/nvrtc_search.h"
#include "gpu/reference_device.h"
#include "warploom/version.h"
#include "warploom/warploom.h"

namespace warploom {
namespace {

using Json = nlohmann::ordered_json;

Json devices() {
  Json list = Json::array();
  list.push_back({{"name", cpu::processor_name()},
                  {"kind", "cpu"},
                  {"architecture", cpu::instruction_set()},
                  {"threads", cpu::num_threads()}});
  const Result<int> count = gpu::device_count();
  for (int ordinal = 0; count.ok() && ordinal < *count; ++ordinal) {
    const Result<gpu::DeviceInfo> info = gpu::device_info(ordinal);
    if (!info.ok()) continue;
    list.push_back({{"name", info->name},
                    {"kind", "cuda"},
                    {"architecture", to_string(gpu::compile_architecture(*info))},
                    {"index", ordinal},
                    {"multiprocessors", info->sm_count},
                    {"memory_bytes", info->memory_bytes},
                    {"l2_bytes", info->l2_bytes},
                    {"shared_bytes_per_block", info->shared_bytes_per_block}});
  }
  return list;
}

Json cuda_driver() {
  const Result<const gpu::Driver*> cuda = gpu::driver();
  if (!cuda.ok()) return {{"found", false}, {"reason", cuda.status().message()}};
  return {{"found", true}, {"path", (*cuda)->path}, {"cuda_version", (*cuda)->version}};
}

Json nvrtc_search() {
  Json list = Json::array();
  for (const gpu::NvrtcCandidate& candidate : gpu::probe_nvrtc_candidates()) {
    Json entry = {{"path", candidate.path}, {"origin", candidate.origin}};
    entry["version"] = candidate.version.known() ? Json(to_string(candidate.version)) : Json();
    if (!candidate.refusal.empty()) entry["refused"] = candidate.refusal;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

std::string devices_json() {
  return devices().dump();
}

std::string information_json() {
  const gpu::Settings& settings = gpu::compiler().settings();
  const gpu::CompilerCounters counters = gpu::compiler().counters();
  const Json json = {{"version", WARPLOOM_VERSION},
                     {"abi_version", WARPLOOM_ABI_VERSION},
                     {"devices", devices()},
                     {"cuda_driver", cuda_driver()},
                     {"nvrtc", nvrtc_search()},
                     {"settings",
                      {{"cache_directory", settings.cache_directory},
                       {"packs", settings.pack_directories},
                       {"keep_sources", settings.keep_sources_directory},
                       {"verbose", settings.verbose}}},
                     {"compiler",
                      {{"compiles", counters.compiles},
                       {"memory_hits", counters.memory_hits},
                       {"disk_hits", counters.disk_hits},
                       {"pack_hits", counters.pack_hits}}}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace warploom
