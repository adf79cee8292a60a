// `warploom check`: the barrier-protocol checker.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

void add_check_command(CLI::App& app);

}  // namespace warploom::cli
