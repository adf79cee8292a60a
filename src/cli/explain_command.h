// `warploom explain`: which kernel, tile and schedule a problem gets, and why.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

void add_explain_command(CLI::App& app);

}  // namespace warploom::cli
