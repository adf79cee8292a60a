#include "cli/disassembly.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <system_error>
#include <vector>

#include "gpu/nvrtc_search.h"

namespace warploom::cli {
namespace {

namespace fs = std::filesystem;

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

/// The text of an instruction's line, "/*01f0*/  @P0 BRA `(.L_x_3) ;", without its address; empty for other lines.
std::string_view instruction_of(std::string_view line) {
  line = trimmed(line);
  if (!line.starts_with("/*")) return {};
  const std::size_t end = line.find("*/");
  if (end == std::string_view::npos) return {};
  line = trimmed(line.substr(end + 2));
  return line.find(';') == std::string_view::npos ? std::string_view() : line;
}

/// The label that a branch goes to; empty for other instructions.
std::string_view target_of(std::string_view instruction) {
  if (instruction.find("BRA") == std::string_view::npos) return {};
  const std::size_t begin = instruction.find("`(");
  const std::size_t end = instruction.find(')', begin);
  return begin == std::string_view::npos || end == std::string_view::npos
             ? std::string_view()
             : instruction.substr(begin + 2, end - begin - 2);
}

bool executable(const fs::path& path) {
  return access(path.c_str(), X_OK) == 0;
}

std::optional<fs::path> find_nvdisasm() {
  std::vector<fs::path> folders;
  const char* const path = std::getenv("PATH");
  for (std::string_view rest = path == nullptr ? "" : path; !rest.empty();) {
    const std::size_t end = rest.find(':');
    folders.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  folders.emplace_back("/usr/local/cuda/bin");
  for (const gpu::NvrtcCandidate& candidate : gpu::nvrtc_candidates()) {
    folders.push_back(fs::path(candidate.path).parent_path().parent_path() / "bin");
  }
  for (const fs::path& folder : folders) {
    if (!folder.empty() && executable(folder / "nvdisasm")) return folder / "nvdisasm";
  }
  return std::nullopt;
}

}  // namespace

std::optional<InnerLoop> inner_loop(std::string_view listing) {
  std::optional<InnerLoop> best;
  std::map<std::string_view, std::size_t> labels;  // the number of the instruction that follows
  std::vector<int> mma_before = {0};               // of instruction i: matrix instructions before it
  while (!listing.empty()) {
    const std::size_t end = listing.find('\n');
    const std::string_view line = trimmed(listing.substr(0, end));
    listing.remove_prefix(end == std::string_view::npos ? listing.size() : end + 1);
    if (line.starts_with(".L_") && line.ends_with(":")) labels[line.substr(0, line.size() - 1)] = mma_before.size() - 1;
    const std::string_view instruction = instruction_of(line);
    if (instruction.empty()) continue;
    const bool mma =
        instruction.find("HMMA.") != std::string_view::npos || instruction.find("HGMMA.") != std::string_view::npos;
    mma_before.push_back(mma_before.back() + (mma ? 1 : 0));
    const auto target = labels.find(target_of(instruction));
    if (target == labels.end()) continue;  // no branch, or one forward
    const InnerLoop loop{static_cast<int>(mma_before.size() - 1 - target->second),
                         mma_before.back() - mma_before[target->second]};
    // An outer loop ends later and holds no more of them.
    if (loop.mma > 0 && (!best || loop.mma > best->mma)) best = loop;
  }
  return best;
}

std::optional<std::string> disassemble(const std::string& cubin) {
  static const std::optional<fs::path> program = find_nvdisasm();
  if (!program) return std::nullopt;
  std::string name = (fs::temp_directory_path() / "warploom-XXXXXX").string();
  const int file = mkstemp(name.data());
  if (file < 0) return std::nullopt;
  close(file);
  std::ofstream(name, std::ios::binary) << cubin;
  std::string listing;
  {
    const std::string command = "'" + program->string() + "' -c '" + name + "' 2>/dev/null";
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
    char part[1 << 14];
    for (std::size_t count = 0; pipe && (count = std::fread(part, 1, sizeof part, pipe.get())) > 0;)
      listing.append(part, count);
  }
  std::error_code ignored;
  fs::remove(name, ignored);
  if (listing.empty()) return std::nullopt;
  return listing;
}

}  // namespace warploom::cli
