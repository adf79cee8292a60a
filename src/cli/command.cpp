#include "cli/command.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/terminal.h"

namespace warploom::cli {

CLI::App* add_command(CLI::App& parent, const std::string& name, const std::string& description,
                      const std::string& examples) {
  CLI::App* command = parent.add_subcommand(name, description);
  command->footer("Examples:\n" + examples);
  return command;
}

void on_run(CLI::App& command, std::function<int()> run) {
  command.final_callback([&command, run = std::move(run)] {
    if (!command.get_subcommands().empty()) return;  // a nested subcommand has done the work
    if (const int code = run(); code != exit_success) throw CLI::RuntimeError(code);
  });
}

int report(const Status& status) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s %s\n", paint(Colour::red, "warploom:", stderr).c_str(), status.message().c_str());
  return status.code() == StatusCode::runtime_error ? exit_check_failed : exit_usage;
}

int report_if_error(const Status& status) {
  return status.ok() ? static_cast<int>(exit_success) : report(status);
}

Status write_file(const std::string& option, const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (file) return {};
  return Status::runtime_error(option + " " + path + ": the file could not be written; check folder, rights and space");
}

CLI::Option* is_written(CLI::Option* option) {
  return option->check([](const std::string& path) -> std::string {
    if (path.empty() || path == "-") return {};
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) return path + " is a folder; name a file";
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    const bool exists = std::filesystem::exists(path, error);
    if (::access(exists ? path.c_str() : folder.empty() ? "." : folder.c_str(), W_OK) == 0) return {};
    return path + " cannot be written: " + std::generic_category().message(errno);
  });
}

void OutputOption::add_to(CLI::App& command, const std::string& name, const std::string& format) {
  option_ =
      command.add_option(name, file_, "Write the result as " + format + " to FILE; - or no FILE: standard output");
  is_written(option_)->type_name("[FILE]")->expected(0, 1);
}

Status OutputOption::write(const std::string& text) const {
  if (!requested()) return {};
  if (!takes_standard_output()) return write_file(option_->get_name(), file_, text);
  std::cout << text << std::flush;
  if (!std::cout) return Status::runtime_error(option_->get_name() + ": standard output could not be written");
  return {};
}

Status JsonOption::write(const Json& value) const {
  if (!requested()) return {};
  // Text from outside (paths, driver messages) may hold bytes that are not UTF-8; they are replaced, not refused.
  return output_.write(value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void add_round_options(CLI::App& command, int& rounds, double& round_ms) {
  command.add_option("--rounds", rounds, "Rounds in which all take turns; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  constexpr double most_ms = 60000;
  command.add_option("--round-ms", round_ms, "Least time for each in a round, milliseconds")
      ->check([](const std::string& text) -> std::string {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= 0 && value <= most_ms)
          return {};  // neither holds of NaN
        return format("Value %s not in range 0 to %.0f", text.c_str(), most_ms);
      })
      ->capture_default_str();
}

CLI::Option* not_negative(CLI::Option* option) {
  return option->check(
      [](const std::string& text) { return text.starts_with('-') ? text + " is negative; pass 0 or more" : ""; });
}

std::string usage_message(const CLI::App* app, const CLI::Error& error) {
  std::string words = error.what(), line = app->get_name();
  const CLI::App* innermost = app;
  while (!innermost->get_subcommands().empty()) {
    innermost = innermost->get_subcommands().front();
    line += " " + innermost->get_name();
  }
  if (innermost->get_require_subcommand_min() > 0 && innermost->get_subcommands().empty()) {
    const std::vector<std::string> unknown = innermost->remaining();
    words = unknown.empty() ? line + " needs a command" : line + " has no command '" + unknown.front() + "'";
    words += "; it has";
    const char* separator = " ";
    for (const CLI::App* each : innermost->get_subcommands({})) {
      words += separator + each->get_name();
      separator = ", ";
    }
  }
  return paint(Colour::red, "warploom:", stderr) + " " + words + "\n`" + line +
         " --help` shows options and examples.\n";
}

Progress::Progress(std::string label, std::int64_t total)
    : label_(std::move(label)), total_(total), terminal_(is_terminal(stderr)) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void Progress::update(std::int64_t done) {
  using namespace std::chrono_literals;
  done_ = done;
  if (!terminal_ || total_ <= 0) return;
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double> elapsed = now - start_;
  const double share = static_cast<double>(done_) / static_cast<double>(total_);
  const double expected_s = share > 0 ? elapsed.count() / share : 0;
  const bool long_work = elapsed > 2s || (elapsed > 300ms && expected_s > 2);
  if (!long_work || (drawn_ && now - last_drawn_ < 100ms)) return;
  std::fprintf(stderr, "\r\x1b[K%s %s %3.0f %%  %.0f s left", label_.c_str(), bar(share, 30).c_str(), 100 * share,
               share > 0 ? expected_s - elapsed.count() : 0.0);
  std::fflush(stderr);
  last_drawn_ = now;
  drawn_ = true;
}

}  // namespace warploom::cli
