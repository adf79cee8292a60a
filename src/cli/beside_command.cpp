#include "cli/beside_command.h"

#include <system_error>

namespace warploom::cli {

namespace fs = std::filesystem;

std::optional<std::string> find_above_command(const fs::path& relative) {
  std::error_code ignored;
  const fs::path command = fs::read_symlink("/proc/self/exe", ignored);
  for (fs::path folder = command.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    if (fs::exists(folder / relative, ignored)) return (folder / relative).string();
    if (folder == folder.root_path()) break;
  }
  return std::nullopt;
}

std::string default_python() {
  std::error_code ignored;
  const fs::path beside = fs::read_symlink("/proc/self/exe", ignored).parent_path() / "python";
  if (fs::exists(beside, ignored)) return beside.string();
  return find_above_command(fs::path(".venv") / "bin" / "python").value_or("python3");
}

}  // namespace warploom::cli
