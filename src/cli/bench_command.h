// `warploom bench`: tables of time, rate, bytes and share of the roofline.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

void add_bench_command(CLI::App& app);

}  // namespace warploom::cli
