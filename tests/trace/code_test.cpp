// Marks cost nothing where they are off: the machine code is that of sources without them. Where they are on the kernel
// still has its registers. Compiled with NVRTC; no GPU.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "../gpu/support.h"
#include "gpu/choose_plan.h"
#include "gpu/gemm_plan.h"
#include "gpu/reference_device.h"

namespace warploom::gpu {
namespace {

template <typename T>
T at(const std::string& bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// The instructions: section .text.* of a 64-bit ELF file.
std::string machine_code(const std::string& cubin) {
  const auto headers = at<std::uint64_t>(cubin, 0x28);
  const auto size = at<std::uint16_t>(cubin, 0x3A), count = at<std::uint16_t>(cubin, 0x3C),
             names = at<std::uint16_t>(cubin, 0x3E);
  const auto offset_of = [&](std::uint64_t section) { return at<std::uint64_t>(cubin, headers + section * size + 24); };
  for (std::uint64_t section = 0; section < count; ++section) {
    const char* name = cubin.data() + offset_of(names) + at<std::uint32_t>(cubin, headers + section * size);
    if (std::string_view(name).starts_with(".text.")) {
      return cubin.substr(offset_of(section), at<std::uint64_t>(cubin, headers + section * size + 32));
    }
  }
  return {};
}

/// Without the statements that call what leaves marks.
std::string without_marks(std::string text) {
  for (const std::string_view call : {"mark(", "mark_step(", "settle_marks(", "start_trace(", "finish_trace("}) {
    for (std::size_t at = 0; (at = text.find(call, at)) != std::string::npos;) {
      if (at > 0 && (std::isalnum(static_cast<unsigned char>(text[at - 1])) != 0 || text[at - 1] == '_')) {
        at += call.size();  // the end of another name
        continue;
      }
      const std::size_t before = text.find_last_of("\n;{}", at), end = text.find(';', at);
      const std::size_t begin = before == std::string::npos ? 0 : before + 1;
      text.erase(begin, end - begin + 1);
      at = begin;
    }
  }
  return text;
}

/// The kernels' sources without a single mark.
const SourceFiles& sources_without_marks() {
  static const SourceFiles files = [] {
    SourceFiles result;
    for (const KernelFile& file : kernel_files()) {
      const std::string text(file.text);
      result.emplace(file.path, file.path == "pipeline/trace.h" ? text : without_marks(text));
    }
    return result;
  }();
  return files;
}

Result<CubinPointer> compiled(const KernelFamily& family, const ConfigKey& config, bool with_marks) {
  CompilerOptions options;
  options.settings.cache_directory = "";
  options.nvrtc_candidates = test_nvrtc;
  if (!with_marks) options.sources = lookup_in(sources_without_marks());
  return Compiler(options).get(family.request(config, {9, 0, true}));
}

/// A launch of that configuration made its traced variant.
ConfigKey traced(const KernelFamily& family, const ConfigKey& config, trace::Level level) {
  PlannedLaunch launch;
  launch.config = config;
  std::memset(launch.params, 0, sizeof launch.params);
  family.trace->attach(launch, level, {});
  return launch.config;
}

/// Configurations of every family with marks: one in the middle of its list, and the one with most in it.
std::vector<KernelVariant> variants_with_marks() {
  std::map<std::string, std::vector<KernelVariant>> by_family;
  for (const KernelVariant& variant : kernel_variants(*reference_device({9, 0, true}), false)) {
    if (variant.family->trace != nullptr) by_family[variant.family->name].push_back(variant);
  }
  std::vector<KernelVariant> some;
  for (const auto& [name, all] : by_family) {
    for (const std::size_t i : {all.size() / 2, all.size() - 1}) some.push_back(all[i]);
  }
  return some;
}

TEST(TraceMarks, SourcesHaveSome) {
  for (const KernelVariant& variant : variants_with_marks()) {
    const std::string entry = variant.family->request(variant.config, {9, 0, true}).entry_file;
    EXPECT_NE(*embedded_source(entry), sources_without_marks().at(entry)) << entry;
  }
}

TEST(TraceMarks, LeaveNoInstructionWhereTheyAreOff) {
  if (nvrtc_directory().empty()) GTEST_SKIP() << "no NVRTC";
  for (const KernelVariant& variant : variants_with_marks()) {
    const Result<CubinPointer> marked = compiled(*variant.family, variant.config, true);
    const Result<CubinPointer> bare = compiled(*variant.family, variant.config, false);
    ASSERT_TRUE(marked.ok()) << marked.status().message();
    ASSERT_TRUE(bare.ok()) << bare.status().message();
    ASSERT_GT(machine_code((*marked)->image).size(), 1000u);
    EXPECT_EQ(machine_code((*marked)->image), machine_code((*bare)->image)) << variant.name;
  }
}

TEST(TraceMarks, WhereTheyAreOnTheCodeDiffersAndHardlyAnythingSpills) {
  if (nvrtc_directory().empty()) GTEST_SKIP() << "no NVRTC";
  for (const KernelVariant& variant : variants_with_marks()) {
    // Attention's consumers use every register that they have: a few words that marks push out do not matter.
    const int most_spilled = variant.family == &kGemm ? 0 : 32;
    const Result<CubinPointer> plain = compiled(*variant.family, variant.config, true);
    for (const trace::Level level : {trace::Level::rings, trace::Level::steps}) {
      const Result<CubinPointer> on = compiled(*variant.family, traced(*variant.family, variant.config, level), true);
      ASSERT_TRUE(on.ok()) << on.status().message();
      EXPECT_NE(machine_code((*plain)->image), machine_code((*on)->image)) << variant.name;
      EXPECT_LE((*on)->resources.spill_store_bytes, most_spilled) << variant.name;
      EXPECT_TRUE((*on)->resources.performance_warnings.empty()) << variant.name;
    }
  }
}

}  // namespace
}  // namespace warploom::gpu
