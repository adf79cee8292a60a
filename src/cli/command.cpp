#include "cli/command.h"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

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

void JsonOption::add_to(CLI::App& command) {
  option_ = command.add_option("--json", file_, "Write the result as JSON to FILE; - or no FILE: standard output");
  option_->type_name("[FILE]")->expected(0, 1);
}

Status JsonOption::write(const Json& value) const {
  if (!requested()) return {};
  // Text from outside (paths, driver messages) may hold bytes that are not UTF-8; they are replaced, not refused.
  const std::string text = value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  if (to_standard_output()) {
    std::cout << text << std::flush;
    if (!std::cout) return Status::runtime_error("--json: standard output could not be written");
    return {};
  }
  std::ofstream file(file_, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file)
    return Status::runtime_error("--json " + file_ + ": the file could not be written; check folder, rights and space");
  return {};
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
