// The subcommand `warploom bench ladder`.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

void add_bench_ladder_command(CLI::App& bench);

}  // namespace warploom::cli
