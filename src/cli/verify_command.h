// `warploom verify`: every operator against the float64 reference on edge cases.
#pragma once

#include <CLI/CLI.hpp>

namespace warploom::cli {

void add_verify_command(CLI::App& app);

}  // namespace warploom::cli
