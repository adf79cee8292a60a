// The list of subcommands.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

/// Adds every subcommand of `warploom` to the application.
void add_commands(CLI::App& app);

/// The whole command: parses, runs, prints errors; returns the exit code.
int run_command(int argc, const char* const* argv);

}  // namespace warploom::cli
