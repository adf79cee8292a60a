// `warploom simulate`: the pipeline model.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

void add_simulate_command(CLI::App& app);

}  // namespace warploom::cli
