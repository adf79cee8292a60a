// `warploom verify`: every operator against the float64 reference on edge cases.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

void add_verify_command(CLI::App& app);

}  // namespace warploom::cli
