#include "gpu/nvrtc_search.h"

#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>

namespace warploom::gpu {
namespace {

namespace fs = std::filesystem;

// The names in a folder that begin with `prefix`, sorted so that the order does not depend on the file system; none
// when the folder cannot be read. By readdir: a directory_iterator makes a path of each of the thousands of names in
// /usr/lib, which cost more than all the rest of a warm start.
std::vector<std::string> names_in(const fs::path& directory, std::string_view prefix) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(directory.c_str()), &closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    if (std::string_view(entry->d_name).starts_with(prefix)) names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "12.4.127" gives 12.4, "13" gives 13 and no minor number.
struct NameVersion {
  int major = 0;
  std::optional<int> minor;
};

std::optional<NameVersion> version_of_suffix(std::string_view text) {
  NameVersion version;
  const char* end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, version.major);
  if (error != std::errc()) return std::nullopt;
  if (at != end && *at == '.') {
    int minor = 0;
    if (std::from_chars(at + 1, end, minor).ec == std::errc()) version.minor = minor;
  }
  return version;
}

// The version in `name` when that is PREFIX.so.VERSION.
std::optional<NameVersion> version_in_name(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix) || !name.substr(prefix.size()).starts_with(".so.")) return std::nullopt;
  return version_of_suffix(name.substr(prefix.size() + 4));
}

// libnvrtc.so.13 tells the major version only. NVRTC itself opens libnvrtc-builtins.so.MAJOR.MINOR by that exact name,
// so the builtins beside it tell the rest, unless several of one major version lie there.
NvrtcVersion version_from_names(const fs::path& library, const std::vector<std::string>& beside) {
  std::error_code error;
  const std::string name = library.filename().string();
  for (const std::string& known : {name, fs::canonical(library, error).filename().string()}) {
    const std::optional<NameVersion> version = version_in_name(known, "libnvrtc");
    if (version && version->minor) return {version->major, *version->minor};
  }
  const std::optional<NameVersion> wanted = version_of_suffix(std::string_view(name).substr(name.find(".so.") + 4));
  std::set<NvrtcVersion> found;
  for (const std::string& other : beside) {
    const std::optional<NameVersion> version = version_in_name(other, "libnvrtc-builtins");
    if (version && version->minor && wanted && version->major == wanted->major) {
      found.insert({version->major, *version->minor});
    }
  }
  return found.size() == 1 ? *found.begin() : NvrtcVersion{};
}

// libnvrtc.so.13, and libnvrtc-672ee683.so.12 as torch names its copy. Not the builtins, not libnvrtc.alt.so.13.
bool is_nvrtc_name(std::string_view name) {
  return name.starts_with("libnvrtc") && !name.starts_with("libnvrtc-builtins") && !name.starts_with("libnvrtc.alt") &&
         name.find(".so.") != std::string_view::npos;
}

void add_folder(const fs::path& directory, const std::string& origin, std::vector<NvrtcCandidate>& candidates) {
  const std::vector<std::string> names = names_in(directory, "libnvrtc");
  std::vector<NvrtcCandidate> here;
  std::set<fs::path> files;
  for (const std::string& name : names) {
    if (!is_nvrtc_name(name)) continue;
    const fs::path path = directory / name;
    // libnvrtc.so.12 and libnvrtc.so.12.4.127 are one file; the shorter name comes first in the order.
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    if (error || !files.insert(real).second) continue;
    NvrtcCandidate candidate{path.string(), origin, version_from_names(path, names), ""};
    if (candidate.version.known() && candidate.version < oldest_nvrtc) {
      candidate.refusal = "is NVRTC " + to_string(candidate.version) + ", too old: NVRTC " + to_string(oldest_nvrtc) +
                          " or newer is needed";
    }
    here.push_back(std::move(candidate));
  }
  // Newest first, and those whose name says nothing last.
  std::stable_sort(here.begin(), here.end(),
                   [](const NvrtcCandidate& a, const NvrtcCandidate& b) { return a.version > b.version; });
  for (NvrtcCandidate& candidate : here) candidates.push_back(std::move(candidate));
}

void add_below(const fs::path& directory, const std::string& origin, std::vector<NvrtcCandidate>& candidates) {
  add_folder(directory, origin, candidates);
  // Wheels of CUDA 13 and newer share nvidia/cuNN; CUDA 12 has a folder a package.
  std::vector<std::string> wheels = names_in(directory / "nvidia", "cu");
  std::reverse(wheels.begin(), wheels.end());
  for (const std::string& name : wheels) {
    if (name.size() > 2 && name[2] >= '0' && name[2] <= '9') {
      add_folder(directory / "nvidia" / name / "lib", origin, candidates);
    }
  }
  add_folder(directory / "nvidia" / "cuda_nvrtc" / "lib", origin, candidates);
  add_folder(directory / "torch" / "lib", origin, candidates);
}

// The folders named in the loader's configuration, files it includes read in order.
std::vector<fs::path> loader_folders() {
  std::vector<fs::path> folders;
  if (const char* path = std::getenv("LD_LIBRARY_PATH"); path != nullptr) {
    std::string_view rest = path;
    while (!rest.empty()) {
      const std::size_t end = rest.find(':');
      if (end != 0) folders.emplace_back(rest.substr(0, end));
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    }
  }
  const fs::path configuration = "/etc/ld.so.conf.d";
  for (const std::string& name : names_in(configuration, "")) {
    std::ifstream lines(configuration / name);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with('/')) folders.emplace_back(line.substr(0, line.find_last_not_of(" \t\r") + 1));
    }
  }
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"}) {
    folders.emplace_back(folder);
  }
  return folders;
}

std::vector<fs::path> toolkit_folders() {
  std::vector<fs::path> folders{"/usr/local/cuda/lib64"};
  const fs::path local = "/usr/local";
  std::vector<std::string> toolkits = names_in(local, "cuda-");
  std::reverse(toolkits.begin(), toolkits.end());
  for (const std::string& name : toolkits) folders.push_back(local / name / "lib64");
  return folders;
}

// The site-packages folder that a file lies in, or that belongs to the environment whose bin/ it lies in. Debian's own
// Python calls it dist-packages, /usr/lib/python3 and /usr/local/lib/python3.N hold it.
std::vector<fs::path> site_packages_of(const fs::path& file) {
  std::vector<fs::path> found;
  for (fs::path folder = file.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
    const fs::path name = folder.filename();
    if (name == "site-packages" || name == "dist-packages") found.push_back(folder);
  }
  const fs::path library = file.parent_path().parent_path() / "lib";
  for (const std::string& name : names_in(library, "python3")) {
    for (const char* packages : {"site-packages", "dist-packages"}) found.push_back(library / name / packages);
  }
  return found;
}

std::vector<fs::path> python_folders() {
  std::vector<fs::path> files;
  std::error_code error;
  files.push_back(fs::read_symlink("/proc/self/exe", error));
  if (Dl_info info{}; dladdr(reinterpret_cast<void*>(&python_folders), &info) != 0 && info.dli_fname != nullptr) {
    files.push_back(fs::weakly_canonical(info.dli_fname, error));
  }
  std::vector<fs::path> folders;
  for (const fs::path& file : files) {
    for (fs::path& folder : site_packages_of(file)) {
      if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(std::move(folder));
    }
  }
  return folders;
}

struct Registry {
  std::mutex mutex;
  std::vector<std::string> search_directories;
  std::optional<std::vector<NvrtcCandidate>> candidates;
  std::map<std::string, Result<std::shared_ptr<const Nvrtc>>> loaded;
};

// Never destroyed: threads that compile may outlive main.
Registry& registry() {
  static Registry& held = *new Registry;
  return held;
}

std::vector<NvrtcCandidate> scan(const std::vector<std::string>& search_directories) {
  std::vector<NvrtcCandidate> candidates;
  for (const std::string& directory : search_directories) add_below(directory, "search directory", candidates);
  for (const fs::path& folder : loader_folders()) add_folder(folder, "system", candidates);
  for (const fs::path& folder : toolkit_folders()) add_folder(folder, "CUDA toolkit", candidates);
  for (const fs::path& folder : python_folders()) add_below(folder, "Python environment", candidates);
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12"}) candidates.push_back({name, "loader", {}, ""});
  // One file may be reached in several ways; the first counts.
  std::set<std::string> seen;
  std::erase_if(candidates, [&seen](const NvrtcCandidate& candidate) {
    std::error_code error;
    const fs::path real = fs::canonical(candidate.path, error);
    return !seen.insert(error ? candidate.path : real.string()).second;
  });
  return candidates;
}

}  // namespace

void add_search_directory(const std::string& directory) {
  Registry& shared = registry();
  const std::lock_guard lock(shared.mutex);
  std::vector<std::string>& known = shared.search_directories;
  if (directory.empty() || std::find(known.begin(), known.end(), directory) != known.end()) return;
  known.push_back(directory);
  shared.candidates.reset();
}

std::vector<NvrtcCandidate> candidates_below(const std::string& directory, const std::string& origin) {
  std::vector<NvrtcCandidate> candidates;
  add_below(directory, origin, candidates);
  return candidates;
}

std::vector<NvrtcCandidate> nvrtc_candidates() {
  Registry& shared = registry();
  const std::lock_guard lock(shared.mutex);
  if (!shared.candidates) shared.candidates = scan(shared.search_directories);
  return *shared.candidates;
}

std::vector<NvrtcCandidate> probe_nvrtc_candidates() {
  std::vector<NvrtcCandidate> candidates = nvrtc_candidates();
  for (NvrtcCandidate& candidate : candidates) {
    if (!candidate.refusal.empty()) continue;
    const Result<std::shared_ptr<const Nvrtc>> nvrtc = load_candidate(candidate);
    if (nvrtc.ok()) {
      candidate.version = (*nvrtc)->version();
    } else {
      candidate.refusal = nvrtc.status().message();
    }
  }
  return candidates;
}

Result<std::shared_ptr<const Nvrtc>> load_candidate(const NvrtcCandidate& candidate) {
  Registry& shared = registry();
  const std::lock_guard lock(shared.mutex);
  const auto known = shared.loaded.find(candidate.path);
  if (known != shared.loaded.end()) return known->second;
  return shared.loaded.emplace(candidate.path, Nvrtc::open(candidate.path)).first->second;
}

}  // namespace warploom::gpu
