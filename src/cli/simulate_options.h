// What the subcommands of `warploom simulate` share: options made from parameter tables, pictures to files, a run as
// text.
#pragma once

#include <CLI/CLI.hpp>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "sim/json.h"
#include "sim/parameters.h"
#include "sim/scenario.h"

namespace warploom::cli {

// Options made from a table of parameters; only those that were given become settings.
class ParameterOptions {
 public:
  template <typename Scenario>
  void add_to(CLI::App& command) {
    const Scenario defaults{};
    for (const sim::Parameter<Scenario>& parameter : sim::parameters(defaults)) {
      std::string flag = "--" + parameter.name;
      for (char& c : flag)
        if (c == '_') c = '-';
      std::string& text = texts_.emplace_back();
      options_.push_back(
          {parameter.name, command.add_option(flag, text, parameter.help)->type_name(parameter.value), &text});
    }
  }
  sim::Settings given() const {
    sim::Settings settings;
    for (const Entry& entry : options_)
      if (entry.option->count() > 0) settings.emplace_back(entry.name, *entry.text);
    return settings;
  }

 private:
  struct Entry {
    std::string name;
    CLI::Option* option;
    std::string* text;
  };
  std::deque<std::string> texts_;  // addresses must last
  std::vector<Entry> options_;
};

// Writes what `text()` makes, if the option was given.
template <typename Text>
Status write_if_given(const std::string& option, const std::string& path, Text text) {
  return path.empty() ? Status() : write_file(option, path, text());
}

/// Bars of use, the timeline's rows and the notes of a run.
void print_lanes(const sim::Run& run, const sim::Window& window);

/// Title, makespan, closed form, critical path, utilisation, timeline, notes and the note on optimism. The run needs a
/// trace.
void print_run(const sim::Run& run, const sim::Window& window);

/// The options of one run, its parameters apart: --until, --width, --svg, --perfetto, --json.
struct RunOutput {
  std::optional<sim::Cycles> until;
  std::int64_t width = 72;
  std::string svg, perfetto;
  JsonOption json;

  void add_to(CLI::App& command);
  /// Writes what was asked for and prints the rest; the exit code.
  int finish(const sim::Run& run) const;
  /// The same with the caller's words: `print` for the terminal, `json` for --json. Neither is called without need.
  int finish(const sim::Run& run, const std::function<void(const sim::Window&)>& print,
             const std::function<Json(const sim::Window&)>& json_of) const;
};

/// sweep, design, work, shared, program, machine: below `simulate`.
void add_simulate_explore_commands(CLI::App& simulate);

}  // namespace warploom::cli
