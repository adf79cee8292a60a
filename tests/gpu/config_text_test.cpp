// What a kernel is compiled for is a text made of its configuration, which is found by a key. A member that one of the
// three leaves out compiles the wrong kernel and says nothing, so for every family of kernels every member is followed
// from the struct in its header to the text.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "gpu/choose_plan.h"
#include "gpu/kernel_sources.h"
#include "gpu/reference_device.h"
#include "gpu/user_score.h"

namespace warploom::gpu {
namespace {

/// "Type" of "inline constexpr Type kConfig = {".
std::string type_of(const std::string& config_text) {
  std::smatch found;
  return std::regex_search(config_text, found, std::regex(R"(inline constexpr (\w+) kConfig = \{)")) ? found[1].str()
                                                                                                     : "";
}

/// The members of a struct that some kernel header defines.
std::vector<std::string> members_of(const std::string& type) {
  std::vector<std::string> members;
  for (const KernelFile& file : kernel_files()) {
    const std::string text = std::regex_replace(std::string(file.text), std::regex("//[^\n]*"), "");
    const std::size_t begin = text.find("struct " + type + " {");
    if (begin == std::string::npos) continue;
    const std::size_t end = text.find("\n};", begin);
    std::string body = text.substr(begin, end - begin);
    body = body.substr(body.find('{') + 1);
    const std::regex declaration(R"(\s*([\w:]+)\s+([^;()]+);)");
    for (std::sregex_iterator it(body.begin(), body.end(), declaration), last; it != last; ++it) {
      if ((*it)[1] == "static") continue;
      const std::string declarators = (*it)[2];
      const std::regex name(R"((?:^|,)\s*(\w+)\s*(?:=|,|$))");
      for (std::sregex_iterator d(declarators.begin(), declarators.end(), name); d != last; ++d)
        members.push_back((*d)[1]);
    }
    return members;
  }
  return members;
}

/// Member to value, as the text initialises them.
std::map<std::string, std::string> values_of(const std::string& config_text) {
  std::map<std::string, std::string> values;
  const std::regex assignment(R"(\.(\w+) = ([^,;]*?)(?=, \.|\};))");
  for (std::sregex_iterator it(config_text.begin(), config_text.end(), assignment), last; it != last; ++it)
    values[(*it)[1]] = (*it)[2];
  return values;
}

/// One configuration of each family on Ampere and on Hopper, with what names it.
std::map<std::string, KernelVariant> one_of_each_family() {
  sample_scores();  // a key may name the process's first score function
  std::map<std::string, KernelVariant> families;
  for (const Architecture architecture : {Architecture{8, 0, false}, Architecture{9, 0, true}}) {
    for (const KernelVariant& variant : kernel_variants(*reference_device(architecture), false))
      families.try_emplace(variant.family->source, variant);
  }
  return families;
}

std::string text_of(const KernelVariant& variant, const ConfigKey& key) {
  return variant.family->request(key, {9, 0, true}).config_text;
}

TEST(ConfigText, NamesEveryMemberOfTheStruct) {
  const auto families = one_of_each_family();
  EXPECT_TRUE(families.contains("kernels/attention/attention_backward_dq_hopper.cu"));
  ASSERT_GE(families.size(), 8u);
  for (const auto& [source, variant] : families) {
    const std::string text = text_of(variant, variant.config);
    const std::vector<std::string> members = members_of(type_of(text));
    EXPECT_FALSE(members.empty()) << source << " has an unknown configuration: " << text;
    const auto values = values_of(text);
    for (const std::string& member : members)
      EXPECT_TRUE(values.contains(member)) << source << " is compiled without ." << member << ": " << text;
    EXPECT_EQ(values.size(), members.size()) << source << ": " << text;
  }
}

TEST(ConfigText, EveryMemberComesFromAPlaceOfItsOwnInTheKey) {
  for (const auto& [source, variant] : one_of_each_family()) {
    const auto before = values_of(text_of(variant, variant.config));
    std::set<std::string> moved;
    for (std::size_t place = 0; place < variant.config.size(); ++place) {
      ConfigKey key = variant.config;
      key[place] = key[place] == 0 ? 1 : 0;  // another number, the other truth, another enumerator
      for (const auto& [member, value] : values_of(text_of(variant, key))) {
        if (before.at(member) == value) continue;
        EXPECT_EQ(place, moved.size()) << source << ": the key's place " << place << " moves ." << member;
        EXPECT_TRUE(moved.insert(member).second) << source << ": two places of the key move ." << member;
      }
    }
    EXPECT_EQ(moved.size(), before.size()) << source << ": a member does not come from the key";
  }
}

}  // namespace
}  // namespace warploom::gpu
