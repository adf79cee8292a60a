#include "gpu/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

namespace warploom::gpu {
namespace {

namespace fs = std::filesystem;

// The last digit is the version of the format.
constexpr std::string_view magic = "WLKERN\r1";
constexpr std::size_t key_bytes = std::tuple_size_v<Digest>;
constexpr std::size_t header_bytes = magic.size() + key_bytes + 8 + 8 + key_bytes;
constexpr std::string_view version_prefix = "nvrtc-";

std::string little_endian(std::uint64_t value) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes.push_back(static_cast<char>(value >> shift));
  return bytes;
}

std::uint64_t read_little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(bytes[i]);
  return value;
}

// A field is hashed with its length, so that no two lists of fields give the same bytes.
void add_field(Sha256& hash, std::string_view field) {
  hash.add(little_endian(field.size()));
  hash.add(field);
}

std::string_view bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string raw_key(std::string_view hex) {
  std::string raw(hex.size() / 2, '\0');
  for (std::size_t i = 0; i < raw.size(); ++i) {
    unsigned byte = 0;
    std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, byte, 16);
    raw[i] = static_cast<char>(byte);
  }
  return raw;
}

Digest checksum(const CacheEntry& entry) {
  Sha256 hash;
  add_field(hash, entry.cubin);
  add_field(hash, entry.log);
  return hash.finish();
}

// An open file that is closed with its scope.
struct File {
  int descriptor = -1;
  explicit File(int opened) : descriptor(opened) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

std::string system_reason() {
  return std::generic_category().message(errno);
}

// False with errno set when the file cannot be read to its end.
bool read_all(int descriptor, std::string& bytes) {
  struct stat info{};
  if (::fstat(descriptor, &info) != 0) return false;
  bytes.resize(static_cast<std::size_t>(info.st_size));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(descriptor, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return true;
}

// A write beyond RLIMIT_FSIZE raises SIGXFSZ, whose default is to end the process. While one of these lives the signal
// waits, and write() says EFBIG as it says ENOSPC; what waited by then is taken away.
class FileSizeSignalHeld {
 public:
  FileSizeSignalHeld() {
    sigset_t waiting;
    ::sigpending(&waiting);
    waited_before_ = ::sigismember(&waiting, SIGXFSZ) == 1;
    ::sigemptyset(&held_);
    ::sigaddset(&held_, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  FileSizeSignalHeld(const FileSizeSignalHeld&) = delete;
  FileSizeSignalHeld& operator=(const FileSizeSignalHeld&) = delete;
  ~FileSizeSignalHeld() {
    const int error = errno;  // the caller's reason
    constexpr timespec at_once{};
    if (!waited_before_) ::sigtimedwait(&held_, nullptr, &at_once);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }

 private:
  bool waited_before_ = false;
  sigset_t held_, before_;
};

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return true;
}

// The reason why `file` is not the kernel of `key`; empty, and the entry filled, when it is.
std::string take_apart(std::string_view file, std::string_view key, CacheEntry& entry) {
  if (file.size() < header_bytes) return "shorter than its header";
  if (!file.starts_with(magic)) return "not a kernel file of this version";
  file.remove_prefix(magic.size());
  if (file.substr(0, key_bytes) != raw_key(key)) return "made for another key";
  file.remove_prefix(key_bytes);
  const std::uint64_t cubin_bytes = read_little_endian(file.substr(0, 8));
  const std::uint64_t log_bytes = read_little_endian(file.substr(8, 8));
  const std::string_view sum = file.substr(16, key_bytes);
  file.remove_prefix(16 + key_bytes);
  // Compared one by one: their sum could wrap.
  if (cubin_bytes > file.size() || log_bytes != file.size() - cubin_bytes)
    return "of another size than its header says";
  entry.cubin = file.substr(0, cubin_bytes);
  entry.log = file.substr(cubin_bytes);
  if (bytes_of(checksum(entry)) != sum) return "damaged: its checksum does not match";
  return {};
}

}  // namespace

Digest cache_key(std::string_view expanded_source, std::string_view config_text, const std::vector<std::string>& flags,
                 const NvrtcVersion& nvrtc, const Architecture& architecture) {
  Sha256 hash;
  add_field(hash, magic);
  add_field(hash, expanded_source);
  add_field(hash, config_text);
  add_field(hash, little_endian(flags.size()));
  for (const std::string& flag : flags) add_field(hash, flag);
  add_field(hash, to_string(nvrtc));
  add_field(hash, to_string(architecture));
  return hash.finish();
}

std::string CacheSlot::folder() const {
  return directory + "/" + to_string(architecture) + "/" + std::string(version_prefix) + to_string(nvrtc);
}
std::string CacheSlot::entry_path() const {
  return folder() + "/" + key + ".kernel";
}
std::string CacheSlot::lock_path() const {
  return folder() + "/" + key + ".lock";
}

CacheRead read_entry(const CacheSlot& slot) {
  CacheRead read;
  const File file(::open(slot.entry_path().c_str(), O_RDONLY | O_CLOEXEC));
  std::string bytes;
  if (file.descriptor < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return read;
    read.reason = "unreadable: " + system_reason();
  } else if (!read_all(file.descriptor, bytes)) {
    read.reason = "unreadable: " + system_reason();
  } else {
    read.reason = take_apart(bytes, slot.key, read.entry);
  }
  read.fault = read.reason.empty() ? CacheFault::none : CacheFault::damaged;
  return read;
}

Status write_entry(const CacheSlot& slot, const CacheEntry& entry) {
  const auto failure = [](const std::string& path, const std::string& reason) {
    return Status::runtime_error(path + ": " + reason);
  };
  std::error_code error;
  fs::create_directories(slot.folder(), error);
  if (error) return failure(slot.folder(), error.message());

  // A name of its own for every writer, also on a file system that several machines share.
  std::string temporary = slot.entry_path() + ".XXXXXX";
  const File file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (file.descriptor < 0) return failure(slot.folder(), system_reason());
  const Digest sum = checksum(entry);
  std::string header(magic);
  header.append(raw_key(slot.key))
      .append(little_endian(entry.cubin.size()))
      .append(little_endian(entry.log.size()))
      .append(bytes_of(sum));
  const FileSizeSignalHeld held;
  // mkostemp makes files for their owner only. Who may read a kernel is decided by its folder, made under the umask.
  const bool written = write_all(file.descriptor, header) && write_all(file.descriptor, entry.cubin) &&
                       write_all(file.descriptor, entry.log) && ::fchmod(file.descriptor, 0644) == 0 &&
                       ::fsync(file.descriptor) == 0 && ::rename(temporary.c_str(), slot.entry_path().c_str()) == 0;
  if (!written) {
    const std::string reason = system_reason();
    ::unlink(temporary.c_str());
    return failure(slot.entry_path(), reason);
  }
  // Makes the rename itself durable; a file system that cannot sync folders loses at most the entry.
  const File folder(::open(slot.folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.descriptor >= 0) ::fsync(folder.descriptor);
  return {};
}

std::vector<NvrtcVersion> versions_in(const std::string& directory, const Architecture& architecture) {
  std::vector<NvrtcVersion> versions;
  std::error_code error;
  for (fs::directory_iterator it(directory + "/" + to_string(architecture), error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(version_prefix)) continue;
    NvrtcVersion version;
    const char* end_of_name = name.data() + name.size();
    const auto [dot, fault] = std::from_chars(name.data() + version_prefix.size(), end_of_name, version.major);
    if (fault != std::errc() || dot == end_of_name || *dot != '.') continue;
    const auto [rest, second_fault] = std::from_chars(dot + 1, end_of_name, version.minor);
    if (second_fault == std::errc() && rest == end_of_name) versions.push_back(version);
  }
  std::sort(versions.rbegin(), versions.rend());
  return versions;
}

KeyLock::KeyLock(KeyLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

KeyLock& KeyLock::operator=(KeyLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

KeyLock::~KeyLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

KeyLock KeyLock::take(const CacheSlot& slot, std::chrono::milliseconds wait) {
  KeyLock lock;
  std::error_code error;
  fs::create_directories(slot.folder(), error);
  // The file stays when the lock goes: removing it would let two processes hold locks on two files of one name.
  File file(::open(slot.lock_path().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (file.descriptor < 0) return lock;
  const auto deadline = std::chrono::steady_clock::now() + wait;
  // flock has no timed wait; a poll every few milliseconds is nothing beside a compile.
  constexpr std::chrono::milliseconds pause{5};
  while (::flock(file.descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return lock;
    if (std::chrono::steady_clock::now() >= deadline) return lock;
    std::this_thread::sleep_for(pause);
  }
  lock.descriptor_ = std::exchange(file.descriptor, -1);
  return lock;
}

}  // namespace warploom::gpu
