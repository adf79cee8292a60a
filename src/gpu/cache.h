// Compiled kernels on disk: one file a kernel, in the user's cache or in read-only packs (the same layout).
//
//   <directory>/<architecture>/nvrtc-<version>/<key>.kernel      magic, key, sizes, checksum, cubin, log
//   <directory>/<architecture>/nvrtc-<version>/<key>.lock        taken while the kernel is being compiled
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/architecture.h"
#include "gpu/nvrtc.h"
#include "gpu/sha256.h"
#include "warploom/status.h"

namespace warploom::gpu {

/// What a kernel's file holds: the cubin, and the compiler's log for the resources and warnings it tells of.
struct CacheEntry {
  std::string cubin;
  std::string log;
};

/// The key of a kernel: SHA-256 of everything its cubin depends on, and of nothing else.
Digest cache_key(std::string_view expanded_source, std::string_view config_text, const std::vector<std::string>& flags,
                 const NvrtcVersion& nvrtc, const Architecture& architecture);

/// Where a kernel lies below a cache directory or pack. `key` in hex.
struct CacheSlot {
  std::string directory;
  Architecture architecture;
  NvrtcVersion nvrtc;
  std::string key;

  std::string folder() const;
  std::string entry_path() const;
  std::string lock_path() const;
};

enum class CacheFault {
  none,
  absent,   ///< no such file: the ordinary miss
  damaged,  ///< unreadable, truncated, of another key or with a wrong checksum
};

struct CacheRead {
  CacheFault fault = CacheFault::absent;
  std::string reason;  ///< for `damaged`
  CacheEntry entry;    ///< for `none`
};

/// Reads and validates the kernel in `slot`.
CacheRead read_entry(const CacheSlot& slot);

/// Writes it: temporary file, fsync, rename. Whoever reads meanwhile sees the old file or the new one, never a part.
/// Error: runtime_error with the path and the system's reason.
Status write_entry(const CacheSlot& slot, const CacheEntry& entry);

/// The NVRTC versions that a cache directory or pack has kernels of for an architecture, newest first.
std::vector<NvrtcVersion> versions_in(const std::string& directory, const Architecture& architecture);

/// The lock of one key among processes. The operating system drops it when its owner ends, however that happens.
class KeyLock {
 public:
  KeyLock() = default;
  KeyLock(const KeyLock&) = delete;
  KeyLock& operator=(const KeyLock&) = delete;
  KeyLock(KeyLock&& other) noexcept;
  KeyLock& operator=(KeyLock&& other) noexcept;
  ~KeyLock();

  /// Waits for the lock at most `wait`. An object without the lock (held() is false) when another process kept it that
  /// long or the folder cannot hold a lock file: the caller goes on without.
  static KeyLock take(const CacheSlot& slot, std::chrono::milliseconds wait);
  bool held() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

}  // namespace warploom::gpu
