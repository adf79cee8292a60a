#include "gpu/compiler.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "gpu/cache.h"
#include "gpu/driver.h"

namespace warploom::gpu {
namespace {

// One in-process lock a key, and the kernel once there is one.
struct KeyState {
  std::mutex mutex;
  CubinPointer cubin;
};

// The fields that tell requests apart, with separators that none of them contains.
std::string request_name(const KernelRequest& request) {
  std::string name = request.entry_file;
  name.append(1, '\0').append(request.kernel_name).append(1, '\0').append(to_string(request.architecture));
  name.append(1, '\0').append(request.config_text);
  return name;
}

CubinPointer make_cubin(const KernelRequest& request, std::string key, NvrtcVersion nvrtc, CubinOrigin origin,
                        CacheEntry entry, Status kept = {}) {
  auto cubin = std::make_shared<Cubin>();
  cubin->key = std::move(key);
  cubin->kernel_name = request.kernel_name;
  cubin->architecture = request.architecture;
  cubin->resources = parse_resources(entry.log, request.kernel_name);
  cubin->image = std::move(entry.cubin);
  cubin->log = std::move(entry.log);
  cubin->origin = origin;
  cubin->kept = std::move(kept);
  cubin->nvrtc = nvrtc;
  return cubin;
}

// The same file of code serves every kernel in it.
CubinPointer for_kernel(const CubinPointer& cubin, const std::string& kernel_name) {
  if (cubin->kernel_name == kernel_name) return cubin;
  auto other = std::make_shared<Cubin>(*cubin);
  other->kernel_name = kernel_name;
  other->resources = parse_resources(other->log, kernel_name);
  return other;
}

// A driver loads cubins of its own major CUDA version and older ones.
bool driver_loads(const NvrtcVersion& version) {
  const Result<int> driver = driver_version();
  return !driver.ok() || version.major <= *driver / 1000;
}

}  // namespace

struct Compiler::State {
  explicit State(CompilerOptions given) : options(std::move(given)) {}

  Result<CubinPointer> find_or_compile(const KernelRequest& request);
  Result<CubinPointer> find_or_compile_with(const KernelRequest& request, const std::string& source,
                                            const NvrtcCandidate& candidate, std::string& refusal);
  CubinPointer find(const KernelRequest& request, const std::string& source, const NvrtcVersion& nvrtc,
                    const std::string& directory, CubinOrigin origin);
  CubinPointer find_in_cache(const KernelRequest& request, const std::string& source, const NvrtcVersion& nvrtc);
  CubinPointer find_of_other_versions(const KernelRequest& request, const std::string& source,
                                      const std::optional<NvrtcVersion>& own);
  Result<CubinPointer> compile(const KernelRequest& request, const std::string& source, const std::string& key,
                               const Nvrtc& nvrtc);
  std::string key_of(const KernelRequest& request, const std::string& source, const NvrtcVersion& nvrtc) const;
  std::shared_ptr<KeyState> state_of(const std::string& key);
  Status store(const CacheSlot& slot, const CacheEntry& entry);
  void keep_source(const KernelRequest& request, const std::string& source, const std::string& key);
  void say(const std::string& text) const;
  static void warn_once(std::once_flag& warned, const std::string& text);

  const CompilerOptions options;

  std::shared_mutex known_mutex;
  std::unordered_map<std::string, CubinPointer> known;  // by request_name
  std::mutex keys_mutex;
  std::unordered_map<std::string, std::shared_ptr<KeyState>> keys;
  std::once_flag warned_of_cache, warned_of_sources;

  std::atomic<std::uint64_t> compiles{0}, memory_hits{0}, disk_hits{0}, pack_hits{0}, damaged_files{0};
};

Result<CubinPointer> Compiler::State::find_or_compile(const KernelRequest& request) {
  const Result<std::string> source = expand_source(request.config_text, request.entry_file, options.sources);
  if (!source.ok()) return source.status();

  std::vector<NvrtcCandidate> candidates = options.nvrtc_candidates();
  // An NVRTC that is newer than the driver is the last choice: its cubins may not load here.
  std::stable_partition(candidates.begin(), candidates.end(), [](const NvrtcCandidate& candidate) {
    return !candidate.version.known() || driver_loads(candidate.version);
  });
  std::string refused;
  for (const NvrtcCandidate& candidate : candidates) {
    std::string refusal = candidate.refusal;
    if (refusal.empty()) {
      Result<CubinPointer> found = find_or_compile_with(request, *source, candidate, refusal);
      if (refusal.empty()) return found;
    }
    say("refused " + candidate.path + ": " + refusal);
    // The bare names at the end of the list are absent on most machines; that they are is no news.
    if (candidate.origin != "loader") refused += "\n  " + candidate.path + ": " + refusal;
  }
  if (CubinPointer found = find_of_other_versions(request, *source, std::nullopt)) return found;
  return Status::runtime_error(
      "no usable NVRTC to compile " + request.entry_file + " for " + to_string(request.architecture) +
      "; install one (pip install nvidia-cuda-nvrtc), or set WARPLOOM_PACKS to a pack that has this kernel" +
      (refused.empty() ? "" : "; refused:" + refused));
}

// `refusal` is set when this NVRTC cannot serve the request and the next should be tried.
Result<CubinPointer> Compiler::State::find_or_compile_with(const KernelRequest& request, const std::string& source,
                                                           const NvrtcCandidate& candidate, std::string& refusal) {
  const Status unusable = Status::runtime_error("refused");
  std::shared_ptr<const Nvrtc> nvrtc;
  const auto load = [&]() {
    const Result<std::shared_ptr<const Nvrtc>> loaded = load_candidate(candidate);
    if (!loaded.ok()) {
      refusal = loaded.status().message();
      return false;
    }
    if (Status status = (*loaded)->check_supports(request.architecture); !status.ok()) {
      refusal = status.message();
      return false;
    }
    nvrtc = *loaded;
    return true;
  };

  // The version from the file names is enough to look a kernel up; the library (141 MB) is loaded to compile only.
  NvrtcVersion version = candidate.version;
  if (!version.known()) {
    if (!load()) return unusable;
    version = nvrtc->version();
  }
  for (;;) {
    const std::string key = key_of(request, source, version);
    const std::shared_ptr<KeyState> state = state_of(key);
    const std::lock_guard in_process(state->mutex);
    if (state->cubin) {
      ++memory_hits;
      return for_kernel(state->cubin, request.kernel_name);
    }
    CubinPointer found = find_in_cache(request, source, version);
    if (!found) found = find_of_other_versions(request, source, version);
    if (found) {
      state->cubin = found;
      return found;
    }
    if (!nvrtc && !load()) return unusable;
    if (nvrtc->version() != version) {
      // The names lied; the key is made again from what the library says.
      version = nvrtc->version();
      continue;
    }
    Result<CubinPointer> compiled = compile(request, source, key, *nvrtc);
    if (compiled.ok()) state->cubin = *compiled;
    return compiled;
  }
}

CubinPointer Compiler::State::find(const KernelRequest& request, const std::string& source, const NvrtcVersion& nvrtc,
                                   const std::string& directory, CubinOrigin origin) {
  const CacheSlot slot{directory, request.architecture, nvrtc, key_of(request, source, nvrtc)};
  CacheRead read = read_entry(slot);
  if (read.fault == CacheFault::damaged) {
    ++damaged_files;
    say("passed over " + slot.entry_path() + ": " + read.reason);
  }
  if (read.fault != CacheFault::none) return nullptr;
  ++(origin == CubinOrigin::disk ? disk_hits : pack_hits);
  say("found " + slot.entry_path());
  return make_cubin(request, slot.key, nvrtc, origin, std::move(read.entry));
}

CubinPointer Compiler::State::find_in_cache(const KernelRequest& request, const std::string& source,
                                            const NvrtcVersion& nvrtc) {
  if (!options.settings.cache_directory.empty()) {
    if (auto found = find(request, source, nvrtc, options.settings.cache_directory, CubinOrigin::disk)) return found;
  }
  for (const std::string& pack : options.settings.pack_directories) {
    if (auto found = find(request, source, nvrtc, pack, CubinOrigin::pack)) return found;
  }
  return nullptr;
}

// A pack is shipped to machines with another NVRTC or none. Its kernels are keyed by the version that made them, so
// each version it has is asked for under its own key. Without any NVRTC (`own` empty) the user's cache is asked the
// same way.
CubinPointer Compiler::State::find_of_other_versions(const KernelRequest& request, const std::string& source,
                                                     const std::optional<NvrtcVersion>& own) {
  const auto look = [&](const std::string& directory, CubinOrigin origin) -> CubinPointer {
    for (const NvrtcVersion& version : versions_in(directory, request.architecture)) {
      if (version == own || !driver_loads(version)) continue;
      if (auto found = find(request, source, version, directory, origin)) return found;
    }
    return nullptr;
  };
  if (!own && !options.settings.cache_directory.empty()) {
    if (auto found = look(options.settings.cache_directory, CubinOrigin::disk)) return found;
  }
  for (const std::string& pack : options.settings.pack_directories) {
    if (auto found = look(pack, CubinOrigin::pack)) return found;
  }
  return nullptr;
}

Result<CubinPointer> Compiler::State::compile(const KernelRequest& request, const std::string& source,
                                              const std::string& key, const Nvrtc& nvrtc) {
  const CacheSlot slot{options.settings.cache_directory, request.architecture, nvrtc.version(), key};
  KeyLock lock;
  if (!slot.directory.empty()) {
    lock = KeyLock::take(slot, options.lock_wait);
    // Another process may have compiled it while this one waited.
    if (auto found = find(request, source, nvrtc.version(), slot.directory, CubinOrigin::disk)) return found;
  }
  keep_source(request, source, key);
  say("compiling " + request.entry_file + " for " + to_string(request.architecture) + " with NVRTC " +
      to_string(nvrtc.version()) + " (" + nvrtc.path() + ")");
  ++compiles;
  Result<CompileOutput> output = nvrtc.compile(source, request.entry_file, request.architecture);
  if (!output.ok()) return output.status();
  CacheEntry entry{std::move(output->cubin), std::move(output->log)};
  Status kept = slot.directory.empty() ? Status() : store(slot, entry);
  // From memory, never read back: a network file system may show the new file late.
  return make_cubin(request, key, nvrtc.version(), CubinOrigin::compiled, std::move(entry), std::move(kept));
}

std::string Compiler::State::key_of(const KernelRequest& request, const std::string& source,
                                    const NvrtcVersion& nvrtc) const {
  return to_hex(cache_key(source, request.config_text, compile_options(nvrtc, request.architecture), nvrtc,
                          request.architecture));
}

std::shared_ptr<KeyState> Compiler::State::state_of(const std::string& key) {
  const std::lock_guard lock(keys_mutex);
  std::shared_ptr<KeyState>& state = keys[key];
  if (!state) state = std::make_shared<KeyState>();
  return state;
}

Status Compiler::State::store(const CacheSlot& slot, const CacheEntry& entry) {
  Status status = write_entry(slot, entry);
  if (!status.ok()) {
    warn_once(warned_of_cache,
              "compiled kernels cannot be kept (" + status.message() +
                  "); they stay in memory until the process ends. Set WARPLOOM_CACHE_DIR to a folder with room that "
                  "can be written");
  }
  return status;
}

void Compiler::State::keep_source(const KernelRequest& request, const std::string& source, const std::string& key) {
  const std::filesystem::path directory = options.settings.keep_sources_directory;
  if (directory.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::filesystem::path stem = std::filesystem::path(request.entry_file).stem();
  const std::filesystem::path path = directory / (stem.string() + "-" + key.substr(0, 16) + ".cu");
  std::ofstream file(path, std::ios::binary);
  if (!(file << source).flush())
    warn_once(warned_of_sources, "WARPLOOM_KEEP_SOURCES: " + path.string() + " cannot be written");
}

void Compiler::State::say(const std::string& text) const {
  if (options.settings.verbose) std::fprintf(stderr, "warploom: %s\n", text.c_str());
}

void Compiler::State::warn_once(std::once_flag& warned, const std::string& text) {
  std::call_once(warned, [&text] { std::fprintf(stderr, "warploom: warning: %s\n", text.c_str()); });
}

Compiler::Compiler(CompilerOptions options) : state_(std::make_unique<State>(std::move(options))) {}

Compiler::Compiler(Settings settings) : Compiler(CompilerOptions{.settings = std::move(settings)}) {}

Compiler::~Compiler() = default;

Result<CubinPointer> Compiler::get(const KernelRequest& request) {
  const std::string name = request_name(request);
  {
    const std::shared_lock lock(state_->known_mutex);
    const auto found = state_->known.find(name);
    if (found != state_->known.end()) {
      ++state_->memory_hits;
      return found->second;
    }
  }
  Result<CubinPointer> cubin = state_->find_or_compile(request);
  if (cubin.ok()) {
    const std::lock_guard lock(state_->known_mutex);
    state_->known.emplace(name, *cubin);
  }
  return cubin;
}

std::vector<Result<CubinPointer>> Compiler::get_many(const std::vector<KernelRequest>& requests, int threads) {
  std::vector<Result<CubinPointer>> results(requests.size(), Status::runtime_error("not run"));
  if (threads <= 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < requests.size(); i = next++) results[i] = get(requests[i]);
  };
  const std::size_t helpers = std::min(static_cast<std::size_t>(threads), requests.size());
  std::vector<std::jthread> pool;
  for (std::size_t i = 1; i < helpers; ++i) pool.emplace_back(work);
  work();
  pool.clear();
  return results;
}

CompilerCounters Compiler::counters() const {
  return {state_->compiles, state_->memory_hits, state_->disk_hits, state_->pack_hits, state_->damaged_files};
}

const Settings& Compiler::settings() const {
  return state_->options.settings;
}

namespace {

struct ProcessCompiler {
  std::mutex mutex;
  std::optional<Settings> configured;
  std::atomic<Compiler*> made{nullptr};
};

// Never destroyed: threads that compile may outlive main.
ProcessCompiler& process_compiler() {
  static ProcessCompiler& held = *new ProcessCompiler;
  return held;
}

}  // namespace

Compiler& compiler() {
  ProcessCompiler& process = process_compiler();
  if (Compiler* made = process.made.load(std::memory_order_acquire)) return *made;
  const std::lock_guard lock(process.mutex);
  if (process.made.load() == nullptr) {
    process.made = new Compiler(process.configured ? *process.configured : settings_from_environment());
  }
  return *process.made.load();
}

Status configure(Settings settings) {
  ProcessCompiler& process = process_compiler();
  const std::lock_guard lock(process.mutex);
  if (process.made.load() != nullptr) {
    return Status::invalid_value(
        "the settings of the kernel compiler cannot change once a kernel was asked for; configure before the first "
        "call");
  }
  process.configured = std::move(settings);
  return {};
}

}  // namespace warploom::gpu
