// `warploom bench gemm`: matrix products on a GPU.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

void add_bench_gemm_command(CLI::App& bench);

}  // namespace warploom::cli
