// What lies in the clone that the command was built in: scripts, examples, its Python.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace warploom::cli {

/// The first of the folders above the command that has the file or folder `relative`.
std::optional<std::string> find_above_command(const std::filesystem::path& relative);

/// The Python beside the command, else the clone's, else python3.
std::string default_python();

}  // namespace warploom::cli
