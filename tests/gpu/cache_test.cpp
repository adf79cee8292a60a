#include "gpu/cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "support.h"

namespace warploom::gpu {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

const CacheEntry sample{std::string("\x7f"
                                    "ELF\0cubin",
                                    10),
                        "a log\n"};

CacheSlot slot_in(const std::string& directory, const std::string& name = "kernel") {
  return {directory, {9, 0, true}, {13, 5}, to_hex(sha256(name))};
}

TEST(CacheKey, ChangesWithEveryInputAndWithNothingElse) {
  const Architecture sm80{8, 0, false};
  const std::vector<std::string> flags{"-a", "-b"};
  const Digest key = cache_key("source", "config", flags, {13, 5}, sm80);
  EXPECT_EQ(key, cache_key("source", "config", flags, {13, 5}, sm80));
  const std::set<Digest> all{key,
                             cache_key("source2", "config", flags, {13, 5}, sm80),
                             cache_key("source", "config2", flags, {13, 5}, sm80),
                             cache_key("sourcec", "onfig", flags, {13, 5}, sm80),
                             cache_key("source", "config", {"-a"}, {13, 5}, sm80),
                             cache_key("source", "config", {"-a-b"}, {13, 5}, sm80),
                             cache_key("source", "config", {"-b", "-a"}, {13, 5}, sm80),
                             cache_key("source", "config", flags, {13, 4}, sm80),
                             cache_key("source", "config", flags, {12, 5}, sm80),
                             cache_key("source", "config", flags, {13, 5}, {9, 0, false}),
                             cache_key("source", "config", flags, {13, 5}, {9, 0, true})};
  EXPECT_EQ(all.size(), 11u);
}

TEST(CacheEntryFile, GivesBackWhatWasWritten) {
  const TemporaryDirectory directory;
  const CacheSlot slot = slot_in(directory.text());
  EXPECT_EQ(read_entry(slot).fault, CacheFault::absent);
  for (const CacheEntry& entry : {sample, CacheEntry{"", ""}, CacheEntry{std::string(300000, 'x'), "log"}}) {
    ASSERT_TRUE(write_entry(slot, entry).ok());
    const CacheRead read = read_entry(slot);
    ASSERT_EQ(read.fault, CacheFault::none) << read.reason;
    EXPECT_EQ(read.entry.cubin, entry.cubin);
    EXPECT_EQ(read.entry.log, entry.log);
  }
  EXPECT_EQ(files_below(directory.path(), "").size(), 1u) << "a temporary file was left";
}

TEST(CacheEntryFile, EveryTruncationIsFound) {
  const TemporaryDirectory directory;
  const CacheSlot slot = slot_in(directory.text());
  ASSERT_TRUE(write_entry(slot, sample).ok());
  const std::string whole = read_file(slot.entry_path());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write_file(slot.entry_path(), std::string_view(whole).substr(0, length));
    ASSERT_EQ(read_entry(slot).fault, CacheFault::damaged) << length << " of " << whole.size() << " bytes";
  }
  write_file(slot.entry_path(), whole + "x");
  EXPECT_EQ(read_entry(slot).fault, CacheFault::damaged);
}

TEST(CacheEntryFile, EveryFlippedBitIsFound) {
  const TemporaryDirectory directory;
  const CacheSlot slot = slot_in(directory.text());
  ASSERT_TRUE(write_entry(slot, sample).ok());
  const std::string whole = read_file(slot.entry_path());
  // In place: rewriting a file of the same size is far quicker than truncating it a thousand times.
  std::fstream file(slot.entry_path(), std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&file](std::size_t at, char byte) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte).flush();
  };
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    put(bit / 8, static_cast<char>(whole[bit / 8] ^ (1 << bit % 8)));
    const CacheRead read = read_entry(slot);
    ASSERT_EQ(read.fault, CacheFault::damaged) << "bit " << bit;
    ASSERT_FALSE(read.reason.empty());
    put(bit / 8, whole[bit / 8]);
  }
  EXPECT_EQ(read_entry(slot).fault, CacheFault::none);
}

TEST(CacheEntryFile, OfAnotherKeyIsRefused) {
  const TemporaryDirectory directory;
  const CacheSlot slot = slot_in(directory.text());
  const CacheSlot other = slot_in(directory.text(), "another kernel");
  ASSERT_TRUE(write_entry(other, sample).ok());
  fs::rename(other.entry_path(), slot.entry_path());
  const CacheRead read = read_entry(slot);
  EXPECT_EQ(read.fault, CacheFault::damaged);
  EXPECT_NE(read.reason.find("another key"), std::string::npos);
}

TEST(CacheEntryFile, AFolderInItsPlaceIsAFaultNotACrash) {
  const TemporaryDirectory directory;
  const CacheSlot slot = slot_in(directory.text());
  fs::create_directories(slot.entry_path() + "/x");
  EXPECT_EQ(read_entry(slot).fault, CacheFault::damaged);
  const Status written = write_entry(slot, sample);
  EXPECT_FALSE(written.ok());
  EXPECT_NE(written.message().find(slot.entry_path()), std::string::npos);
  EXPECT_TRUE(files_below(directory.path(), "").empty()) << "a temporary file was left";
}

TEST(CacheEntryFile, CannotBeWrittenBelowAFile) {
  const TemporaryDirectory directory;
  write_file(directory / "file", "");
  const CacheSlot slot = slot_in(directory / "file");
  EXPECT_FALSE(write_entry(slot, sample).ok());
  EXPECT_EQ(read_entry(slot).fault, CacheFault::absent);
  EXPECT_FALSE(KeyLock::take(slot, milliseconds(1000)).held());
}

// The system's answer to a write beyond RLIMIT_FSIZE is a signal that ends the process.
TEST(CacheEntryFile, BeyondTheFileSizeLimitIsAnErrorAndNoSignal) {
  const TemporaryDirectory directory;
  const CacheSlot slot = slot_in(directory.text());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status written = write_entry(slot, {std::string(5000, 'a'), ""});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(written.message().find("File too large"), std::string::npos) << written.message();
  EXPECT_TRUE(files_below(directory.path(), "").empty()) << "a temporary file was left";
  sigset_t mask, waiting;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &mask), 0);
  ASSERT_EQ(::sigpending(&waiting), 0);
  EXPECT_EQ(::sigismember(&mask, SIGXFSZ), 0);
  EXPECT_EQ(::sigismember(&waiting, SIGXFSZ), 0);
}

// Readers beside a writer that replaces the file again and again must see one whole version or the other.
TEST(CacheEntryFile, IsNeverSeenInPart) {
  const TemporaryDirectory directory;
  const CacheSlot slot = slot_in(directory.text());
  const CacheEntry a{std::string(200000, 'a'), "a"};
  const CacheEntry b{std::string(100000, 'b'), "b"};
  ASSERT_TRUE(write_entry(slot, a).ok());
  std::jthread writer([&](const std::stop_token& stop) {
    for (int i = 0; !stop.stop_requested(); ++i) EXPECT_TRUE(write_entry(slot, i % 2 != 0 ? a : b).ok());
  });
  for (int i = 0; i < 100; ++i) {
    const CacheRead read = read_entry(slot);
    ASSERT_EQ(read.fault, CacheFault::none) << read.reason;
    ASSERT_TRUE(read.entry.log == "a" || read.entry.log == "b");
  }
}

TEST(CacheVersions, AreListedNewestFirst) {
  const TemporaryDirectory directory;
  for (const char* name : {"nvrtc-12.9", "nvrtc-13.10", "nvrtc-13.5", "nvrtc-x", "other", "nvrtc-13", "nvrtc-13.5b"}) {
    fs::create_directories(directory.path() / "sm_90a" / name);
  }
  EXPECT_EQ(versions_in(directory.text(), {9, 0, true}), (std::vector<NvrtcVersion>{{13, 10}, {13, 5}, {12, 9}}));
  EXPECT_TRUE(versions_in(directory.text(), {8, 0, false}).empty());
}

TEST(KeyLocks, ExcludeEachOtherPerKey) {
  const TemporaryDirectory directory;
  const CacheSlot slot = slot_in(directory.text());
  KeyLock first = KeyLock::take(slot, milliseconds(0));
  ASSERT_TRUE(first.held());
  EXPECT_TRUE(KeyLock::take(slot_in(directory.text(), "another kernel"), milliseconds(0)).held());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(KeyLock::take(slot, milliseconds(60)).held());
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(60));
  first = KeyLock();
  EXPECT_TRUE(KeyLock::take(slot, milliseconds(0)).held());
}

}  // namespace
}  // namespace warploom::gpu
