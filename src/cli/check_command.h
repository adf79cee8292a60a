// `warploom check`: the barrier-protocol checker.
#pragma once

#include <CLI/CLI.hpp>

namespace warploom::cli {

void add_check_command(CLI::App& app);

}  // namespace warploom::cli
