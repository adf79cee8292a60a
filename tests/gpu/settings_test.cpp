#include "gpu/settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace warploom::gpu {
namespace {

// Sets variables for one test and puts back what was there.
class SettingsFromEnvironment : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"WARPLOOM_CACHE_DIR", "WARPLOOM_PACKS", "WARPLOOM_KEEP_SOURCES", "WARPLOOM_VERBOSE",
                             "WARPLOOM_OVERLAP_LAUNCHES", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      before_[name] = value != nullptr ? std::optional<std::string>(value) : std::nullopt;
      ::unsetenv(name);
    }
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) {
      if (value) {
        ::setenv(name.c_str(), value->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
  }

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

TEST_F(SettingsFromEnvironment, CacheFollowsXdg) {
  EXPECT_EQ(settings_from_environment().cache_directory, "");
  ::setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(settings_from_environment().cache_directory, "/home/someone/.cache/warploom");
  ::setenv("XDG_CACHE_HOME", "relative/is/ignored", 1);
  EXPECT_EQ(settings_from_environment().cache_directory, "/home/someone/.cache/warploom");
  ::setenv("XDG_CACHE_HOME", "/fast/cache", 1);
  EXPECT_EQ(settings_from_environment().cache_directory, "/fast/cache/warploom");
  ::setenv("WARPLOOM_CACHE_DIR", "/mine", 1);
  EXPECT_EQ(settings_from_environment().cache_directory, "/mine");
}

TEST_F(SettingsFromEnvironment, PacksAreSeparatedByColons) {
  EXPECT_TRUE(settings_from_environment().pack_directories.empty());
  ::setenv("WARPLOOM_PACKS", ":/a::/b/c:", 1);
  EXPECT_EQ(settings_from_environment().pack_directories, (std::vector<std::string>{"/a", "/b/c"}));
}

TEST_F(SettingsFromEnvironment, VerboseIsOffUnlessSet) {
  EXPECT_FALSE(settings_from_environment().verbose);
  ::setenv("WARPLOOM_VERBOSE", "0", 1);
  EXPECT_FALSE(settings_from_environment().verbose);
  ::setenv("WARPLOOM_VERBOSE", "1", 1);
  EXPECT_TRUE(settings_from_environment().verbose);
}

TEST_F(SettingsFromEnvironment, LaunchesOverlapWhereAsked) {
  EXPECT_FALSE(overlaps_launches());
  ::setenv("WARPLOOM_OVERLAP_LAUNCHES", "0", 1);
  EXPECT_FALSE(overlaps_launches());
  ::setenv("WARPLOOM_OVERLAP_LAUNCHES", "1", 1);
  EXPECT_TRUE(overlaps_launches());
}

TEST_F(SettingsFromEnvironment, SourcesAreKeptWhereAsked) {
  EXPECT_EQ(settings_from_environment().keep_sources_directory, "");
  ::setenv("WARPLOOM_KEEP_SOURCES", "/tmp/sources", 1);
  EXPECT_EQ(settings_from_environment().keep_sources_directory, "/tmp/sources");
}

}  // namespace
}  // namespace warploom::gpu
