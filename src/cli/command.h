// How a subcommand is written, and what all of them share: registration, exit codes, --json, progress bars.
//
// A subcommand NAME lives in NAME_command.{h,cpp}, offers one function `void add_NAME_command(CLI::App& app)`, and is
// listed in commands.cpp. That function looks like this:
//
//   struct Options { int count = 3; JsonOption json; };
//
//   void add_count_command(CLI::App& app) {
//     auto options = std::make_shared<Options>();
//     CLI::App* command = add_command(app, "count", "Counts to a number", "  warploom count --to 5\n");
//     command->add_option("--to", options->count, "Last number")->capture_default_str();
//     options->json.add_to(*command);
//     on_run(*command, [options] { return count(*options); });   // int count(const Options&)
//   }
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "cli/json.h"
#include "warploom/status.h"

namespace warploom::cli {

/// What a subcommand returns and the process exits with.
enum ExitCode : int {
  exit_success = 0,
  exit_check_failed = 1,  ///< a check failed, or the work could not be done (a broken file, no device, no memory)
  exit_usage = 2,         ///< the command line is wrong
};

/// Adds a subcommand; `examples` (whole lines, indented by two) closes its --help. Nested subcommands are added to the
/// returned command the same way.
CLI::App* add_command(CLI::App& parent, const std::string& name, const std::string& description,
                      const std::string& examples);

/// What the command does when it is the innermost one on the command line; the result is the exit code.
void on_run(CLI::App& command, std::function<int()> run);

/// Prints "warploom: <message>" on standard error; returns exit_usage for invalid values and types (they come from the
/// command line) and exit_check_failed for everything else. `return report(status);` ends a subcommand.
int report(const Status& status);
/// The same when there is an error, else exit_success: `return report_if_error(json.write(value));`
int report_if_error(const Status& status);

/// Writes `text` into the file that an option names. Error: runtime_error with both.
Status write_file(const std::string& option, const std::string& path, const std::string& text);

/// The option's value is a file to write: one that cannot be written is an error before the work, not after it.
CLI::Option* is_written(CLI::Option* option);

/// An option `NAME [FILE]` that writes a result: to the file, or to standard output without FILE or with `-`.
class OutputOption {
 public:
  void add_to(CLI::App& command, const std::string& name, const std::string& format);
  /// The option was given.
  bool requested() const { return option_ != nullptr && option_->count() > 0; }
  /// Standard output belongs to the result: print nothing else there.
  bool takes_standard_output() const { return requested() && (file_.empty() || file_ == "-"); }
  /// Writes the text if the option was given.
  Status write(const std::string& text) const;

 private:
  std::string file_;
  CLI::Option* option_ = nullptr;
};

/// The option `--json [FILE]`.
class JsonOption {
 public:
  void add_to(CLI::App& command) { output_.add_to(command, "--json", "JSON"); }
  bool requested() const { return output_.requested(); }
  /// False when standard output belongs to the JSON: then print nothing else there.
  bool prints_text() const { return !output_.takes_standard_output(); }
  /// Writes the value if --json was given.
  Status write(const Json& value) const;

 private:
  OutputOption output_;
};

/// The options `--rounds` and `--round-ms` of a measurement; the values given are the defaults.
void add_round_options(CLI::App& command, int& rounds, double& round_ms);

/// The option's value is no negative number: an unsigned one would take -1 for the largest there is.
CLI::Option* not_negative(CLI::Option* option);

/// What a wrong command line is answered with, for CLI::App::failure_message.
std::string usage_message(const CLI::App* app, const CLI::Error& error);

/// A progress bar on standard error. It is drawn only on a terminal, and only once the work has shown that it takes
/// over two seconds; it is wiped when it goes out of scope. Used by one thread.
class Progress {
 public:
  /// `total`: how many steps the work has.
  Progress(std::string label, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Says how many steps are done; cheap enough to be called thousands of times a second.
  void update(std::int64_t done);
  void advance(std::int64_t steps = 1) { update(done_ + steps); }
  /// Replaces the text in front of the bar.
  void label(std::string text) { label_ = std::move(text); }

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  std::int64_t total_;
  std::int64_t done_ = 0;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_drawn_ = start_;
};

}  // namespace warploom::cli
