// The subcommand `warploom bench gemm-ladder`.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

void add_bench_gemm_ladder_command(CLI::App& bench);

}  // namespace warploom::cli
