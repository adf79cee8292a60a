// `warploom bench`: tables of time, rate, bytes and share of the roofline.
#pragma once

#include <CLI/CLI.hpp>

namespace warploom::cli {

void add_bench_command(CLI::App& app);

}  // namespace warploom::cli
