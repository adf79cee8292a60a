// The settings that the environment gives. There are no others.
#pragma once

#include <string>
#include <vector>

#include "warploom/status.h"

namespace warploom::gpu {

struct Settings {
  /// WARPLOOM_CACHE_DIR: where compiled kernels are kept. Default: $XDG_CACHE_HOME/warploom, else ~/.cache/warploom.
  /// Empty: kernels are kept in memory only.
  std::string cache_directory;
  /// WARPLOOM_PACKS: folders made by `warploom compile`, separated by colons; only ever read.
  std::vector<std::string> pack_directories;
  /// WARPLOOM_KEEP_SOURCES: a folder that takes the expanded source of every kernel that is compiled. Empty: none kept.
  std::string keep_sources_directory;
  /// WARPLOOM_VERBOSE (anything but empty and 0): tell on stderr what is compiled, found and refused.
  bool verbose = false;
};

/// The settings of run-time compilation that the environment describes.
Settings settings_from_environment();

/// WARPLOOM_KERNELS, read on every call: "mma.sync" keeps GPU calls to the kernels that every GPU runs, "unsplit" keeps
/// short queries to the kernels for long ones, both for tests and comparisons; "auto" or nothing takes the fastest.
/// Error: runtime_error for anything else.
enum class KernelChoice { fastest, mma_sync, unsplit };
Result<KernelChoice> kernel_choice();

/// WARPLOOM_OVERLAP_LAUNCHES (anything but empty and 0), read on every call: a kernel that follows another one of the
/// same call may start over its end (programmatic dependent launch), which saves some microseconds. Not by default:
/// where several processes take turns on a GPU, such a pair can stop for good (docs/runtime-compilation.md).
bool overlaps_launches();

}  // namespace warploom::gpu
