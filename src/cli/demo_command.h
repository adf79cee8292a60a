// `warploom demo`: the main job end to end: histories, jagged batch, HSTU forward and backward, checks, figures.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

void add_demo_command(CLI::App& app);

}  // namespace warploom::cli
