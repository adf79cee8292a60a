#include "gpu/kernel_sources.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "support.h"

namespace warploom::gpu {
namespace {

namespace fs = std::filesystem;

std::string expanded(const SourceFiles& files, const std::string& entry, const std::string& prefix = "") {
  const Result<std::string> unit = expand_source(prefix, entry, lookup_in(files));
  EXPECT_TRUE(unit.ok()) << unit.status().message();
  return unit.ok() ? *unit : "";
}

std::string refusal(const SourceFiles& files, const std::string& entry, const std::string& prefix = "") {
  const Result<std::string> unit = expand_source(prefix, entry, lookup_in(files));
  EXPECT_FALSE(unit.ok());
  EXPECT_EQ(unit.status().code(), StatusCode::invalid_value);
  return unit.status().message();
}

int count(const std::string& text, const std::string& word) {
  int found = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

TEST(KernelFiles, AreAllOfTheKernelFolderByteForByte) {
  const fs::path root = WARPLOOM_TEST_SOURCE_DIRECTORY "/kernels";
  std::size_t on_disk = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cuh" && extension != ".cu") continue;
    ++on_disk;
    const std::string name = fs::relative(entry.path(), root).generic_string();
    const std::optional<std::string_view> text = embedded_source(name);
    ASSERT_TRUE(text) << name;
    EXPECT_TRUE(*text == read_file(entry.path())) << name << " is embedded with another text; was it built since?";
  }
  EXPECT_EQ(kernel_files().size(), on_disk);
  EXPECT_GT(on_disk, 0u);
}

TEST(KernelFiles, AllExpand) {
  for (const KernelFile& file : kernel_files()) {
    const Result<std::string> unit = expand_source("", file.path);
    EXPECT_TRUE(unit.ok()) << unit.status().message();
  }
}

bool calls(std::string_view text, std::string_view function) {
  const std::string call = std::string(function) + "(";
  for (std::size_t at = text.find(call); at != std::string_view::npos; at = text.find(call, at + 1)) {
    const char before = at == 0 ? ' ' : text[at - 1];
    if (std::isalnum(static_cast<unsigned char>(before)) == 0 && before != '_') return true;
  }
  return false;
}

// Either makes a function call, across which ptxas cannot keep wgmma in flight.
TEST(KernelFiles, CallNoPrintfAndNoAssert) {
  EXPECT_TRUE(calls("if (x) assert(x);", "assert"));
  EXPECT_FALSE(calls("static_assert(x);", "assert"));
  for (const KernelFile& file : kernel_files()) {
    EXPECT_FALSE(calls(file.text, "printf")) << file.path;
    EXPECT_FALSE(calls(file.text, "assert")) << file.path;
  }
}

TEST(KernelFiles, AreSortedForTheSearch) {
  EXPECT_TRUE(std::is_sorted(kernel_files().begin(), kernel_files().end(),
                             [](const KernelFile& a, const KernelFile& b) { return a.path < b.path; }));
  EXPECT_FALSE(embedded_source("no/such/file.h"));
  EXPECT_FALSE(embedded_source(""));
}

TEST(ExpandSource, TakesEveryFileOnceAndInOrder) {
  const SourceFiles files{{"a/one.h", "#pragma once\n#include \"a/two.h\"\nint one;\n"},
                          {"a/two.h", "#include \"a/one.h\"\nint two;\n"},  // a cycle ends where it began
                          {"k/main.cu", "  # include \"a/one.h\" // first\n#include \"a/two.h\"\nint last;\n"}};
  const std::string unit = expanded(files, "k/main.cu", "#define CONFIG 1\n");
  EXPECT_EQ(count(unit, "int one;"), 1);
  EXPECT_EQ(count(unit, "int two;"), 1);
  EXPECT_EQ(count(unit, "#include"), 0);
  EXPECT_EQ(count(unit, "#pragma"), 0);
  EXPECT_LT(unit.find("CONFIG"), unit.find("int two;"));
  EXPECT_LT(unit.find("int two;"), unit.find("int one;"));
  EXPECT_LT(unit.find("int one;"), unit.find("int last;"));
}

TEST(ExpandSource, ConfigTextMayIncludeItsStruct) {
  const SourceFiles files{{"k/config.h", "struct Config { int rows; };\n"},
                          {"k/main.cu", "#include \"k/config.h\"\nint rows = config.rows;\n"}};
  const std::string unit = expanded(files, "k/main.cu", "#include \"k/config.h\"\nconstexpr Config config{64};\n");
  EXPECT_EQ(count(unit, "struct Config"), 1);
  EXPECT_LT(unit.find("struct Config"), unit.find("config{64}"));
}

TEST(ExpandSource, MarksLinesOfTheRealFiles) {
  const SourceFiles files{{"h.h", "int h;"}, {"m.cu", "int a;\n#include \"h.h\"\nint b;\n"}};
  EXPECT_EQ(expanded(files, "m.cu"),
            "#line 1 \"config\"\n#line 1 \"m.cu\"\nint a;\n#line 1 \"h.h\"\nint h;\n#line 3 \"m.cu\"\nint b;\n");
}

TEST(ExpandSource, LeavesCommentsAlone) {
  const SourceFiles files{
      {"m.cu",
       "/* before\n#include <vector>\n#pragma once\n*/ int a; // #include <map>\n//#include \"x.h\"\n"
       "const char* s = \"/*\";\n#include \"h.h\"\n"},
      {"h.h", "int h;\n"}};
  const std::string unit = expanded(files, "m.cu");
  EXPECT_EQ(count(unit, "int h;"), 1);
  EXPECT_EQ(count(unit, "#include <vector>"), 1);
}

TEST(ExpandSource, RefusesWhatItCannotResolve) {
  const SourceFiles files{{"k/angle.cu", "int a;\n#include <cuda_fp16.h>\n"},
                          {"k/absent.cu", "#include \"k/nowhere.h\"\n"},
                          {"k/beside.cu", "#include \"near.h\"\n"},  // only relative to kernels/, never to the file
                          {"k/near.h", ""},
                          {"k/macro.cu", "#define H \"k/near.h\"\n#include H\n"},
                          {"k/deep.cu", "#include \"k/absent.cu\"\n"},
                          {"k/both.cu", "#include \"x.h\"\n"},
                          {"x.h", "int outer;\n"},
                          {"k/x.h", "int inner;\n"}};
  EXPECT_NE(refusal(files, "k/angle.cu").find("k/angle.cu:2: #include <cuda_fp16.h>"), std::string::npos);
  EXPECT_NE(refusal(files, "k/absent.cu").find("k/absent.cu:1: #include \"k/nowhere.h\""), std::string::npos);
  EXPECT_NE(refusal(files, "k/beside.cu").find("relative to kernels/"), std::string::npos);
  EXPECT_NE(refusal(files, "k/macro.cu").find("k/macro.cu:2"), std::string::npos);
  EXPECT_NE(refusal(files, "k/deep.cu").find("k/absent.cu:1"), std::string::npos);
  EXPECT_NE(refusal(files, "k/both.cu").find("ambiguous"), std::string::npos);
  EXPECT_NE(refusal(files, "k/none.cu").find("k/none.cu"), std::string::npos);
  EXPECT_NE(refusal(files, "k/near.h", "#include <string>\n").find("config:1"), std::string::npos);
}

}  // namespace
}  // namespace warploom::gpu
