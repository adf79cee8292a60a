// `warploom info`: devices, libraries found, cache, versions.
#pragma once

#include <CLI/CLI.hpp>

namespace warploom::cli {

void add_info_command(CLI::App& app);

}  // namespace warploom::cli
