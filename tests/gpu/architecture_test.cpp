#include "gpu/architecture.h"

#include <gtest/gtest.h>

namespace warploom::gpu {
namespace {

TEST(Architecture, IsReadAndWrittenAsCompilersSpellIt) {
  for (const char* name : {"sm_80", "sm_86", "sm_90", "sm_90a", "sm_100a", "sm_120"}) {
    const Result<Architecture> read = parse_architecture(name);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(to_string(*read), name);
  }
  EXPECT_EQ(*parse_architecture("sm_90a"), (Architecture{9, 0, true}));
  EXPECT_EQ(*parse_architecture("sm_120"), (Architecture{12, 0, false}));
}

TEST(Architecture, RefusesOtherNames) {
  for (const char* name : {"", "sm_", "sm_a", "90", "compute_90", "sm_9", "sm_-80", "sm_80b", "sm_80aa", "sm_99999"}) {
    const Result<Architecture> read = parse_architecture(name);
    ASSERT_FALSE(read.ok()) << name;
    EXPECT_EQ(read.status().code(), StatusCode::invalid_value);
    EXPECT_NE(read.status().message().find("sm_90a"), std::string::npos) << read.status().message();
  }
}

}  // namespace
}  // namespace warploom::gpu
