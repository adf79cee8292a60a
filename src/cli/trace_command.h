// `warploom trace`: the real kernel with its marks on.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

void add_trace_command(CLI::App& app);

}  // namespace warploom::cli
