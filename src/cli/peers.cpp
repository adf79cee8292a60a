#include "cli/peers.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/numbers.h"

namespace warploom::cli {
namespace {

namespace fs = std::filesystem;

/// The first of the folders above the command that has the file.
std::optional<std::string> find_above_command(const fs::path& relative) {
  std::error_code ignored;
  const fs::path command = fs::read_symlink("/proc/self/exe", ignored);
  for (fs::path folder = command.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    if (fs::exists(folder / relative, ignored)) return (folder / relative).string();
    if (folder == folder.root_path()) break;
  }
  return std::nullopt;
}

std::string default_python() {
  std::error_code ignored;
  const fs::path beside = fs::read_symlink("/proc/self/exe", ignored).parent_path() / "python";
  if (fs::exists(beside, ignored)) return beside.string();
  return find_above_command(fs::path(".venv") / "bin" / "python").value_or("python3");
}

}  // namespace

struct Peers::State {
  pid_t process = -1;
  std::FILE* to = nullptr;
  std::FILE* from = nullptr;

  ~State() {
    if (to != nullptr) std::fclose(to);  // the script ends with its input
    if (from != nullptr) std::fclose(from);
    if (process > 0) waitpid(process, nullptr, 0);
  }
};

Peers::Peers(std::unique_ptr<State> state) : state_(std::move(state)) {}
Peers::Peers(Peers&&) noexcept = default;
Peers& Peers::operator=(Peers&&) noexcept = default;
Peers::~Peers() = default;

Result<Peers> Peers::start(const std::string& python, int threads) {
  const std::optional<std::string> script = find_above_command(fs::path("bench") / "attention_peers.py");
  if (!script) {
    return Status::runtime_error(
        "--peers: bench/attention_peers.py is in none of the folders above the command; run the command of a built "
        "clone (.venv/bin/warploom)");
  }
  const std::string interpreter = python.empty() ? default_python() : python;
  int question[2], answer[2];
  if (pipe(question) != 0 || pipe(answer) != 0)
    return Status::runtime_error(std::string("--peers: no pipe: ") + std::strerror(errno));
  std::signal(SIGPIPE, SIG_IGN);  // a script that died is an error that ask() reports
  std::fflush(nullptr);
  auto state = std::make_unique<State>();
  state->process = fork();
  if (state->process == 0) {
    dup2(question[0], STDIN_FILENO);
    dup2(answer[1], STDOUT_FILENO);
    for (const int end : {question[0], question[1], answer[0], answer[1]}) close(end);
    const std::string count = std::to_string(threads);
    execlp(interpreter.c_str(), interpreter.c_str(), script->c_str(), "--threads", count.c_str(),
           static_cast<char*>(nullptr));
    std::fprintf(stderr, "warploom: --peers: %s cannot be run: %s\n", interpreter.c_str(), std::strerror(errno));
    _exit(127);
  }
  close(question[0]);
  close(answer[1]);
  state->to = fdopen(question[1], "w");
  state->from = fdopen(answer[0], "r");
  if (state->process < 0) return Status::runtime_error(std::string("--peers: no process: ") + std::strerror(errno));
  Peers peers(std::move(state));
  if (const Result<Json> hello = peers.ask({{"hello", 1}}); !hello.ok()) return hello.status();
  return peers;
}

Result<Json> Peers::ask(const Json& question) {
  std::fprintf(state_->to, "%s\n", question.dump().c_str());
  std::fflush(state_->to);
  std::string line;
  for (int c = std::fgetc(state_->from); c != EOF && c != '\n'; c = std::fgetc(state_->from))
    line += static_cast<char>(c);
  const Json answer = Json::parse(line, nullptr, false);
  if (answer.is_discarded())
    return Status::runtime_error(
        "--peers: the Python process ended; its last words are above. Name one that has torch with --python");
  if (answer.contains("error")) return Status::runtime_error("--peers: " + answer["error"].get<std::string>());
  return answer;
}

Result<std::vector<std::string>> Peers::prepare(const std::string& case_name, const ProblemConfig& config) {
  const bool plain = config.bias == BiasForm::none && config.contexts.empty() && config.targets.empty() &&
                     !config.left && config.lengths_k.empty() && config.key_heads_or_default() == config.heads &&
                     config.value_dim_or_default() == config.head_dim;
  if (!plain) return std::vector<std::string>();  // the script knows full and causal attention without a bias
  const Result<Json> answer = ask({{"prepare", case_name},
                                   {"operator", config.softmax ? "softmax" : "hstu"},
                                   {"lengths", config.lengths_q},
                                   {"heads", config.heads},
                                   {"head_dim", config.head_dim},
                                   {"causal", config.right.has_value()},
                                   {"dtype", type_name(config.dtype)}});
  if (!answer.ok()) return answer.status();
  return answer->at("implementations").get<std::vector<std::string>>();
}

Result<double> Peers::measure(const std::string& implementation, bool backward) {
  const Result<Json> answer = ask({{"measure", implementation}, {"backward", backward}});
  if (!answer.ok()) return answer.status();
  return answer->at("ms").get<double>();
}

}  // namespace warploom::cli
