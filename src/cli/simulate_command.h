// `warploom simulate`: the pipeline model.
#pragma once

#include <CLI/CLI.hpp>

namespace warploom::cli {

void add_simulate_command(CLI::App& app);

}  // namespace warploom::cli
