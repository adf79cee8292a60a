// `warploom calibrate`: the simulator's parameters, measured on this machine's GPU.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

void add_calibrate_command(CLI::App& app);

}  // namespace warploom::cli
