#include "cli/peer_script.h"

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

#include "cli/beside_command.h"

namespace warploom::cli {

struct PeerScript::State {
  pid_t process = -1;
  std::FILE* to = nullptr;
  std::FILE* from = nullptr;

  ~State() {
    if (to != nullptr) std::fclose(to);  // the script ends with its input
    if (from != nullptr) std::fclose(from);
    if (process > 0) waitpid(process, nullptr, 0);
  }
};

PeerScript::PeerScript(std::unique_ptr<State> state) : state_(std::move(state)) {}
PeerScript::PeerScript(PeerScript&&) noexcept = default;
PeerScript& PeerScript::operator=(PeerScript&&) noexcept = default;
PeerScript::~PeerScript() = default;

Result<PeerScript> PeerScript::start(const std::string& script, const std::string& python,
                                     const std::vector<std::string>& arguments) {
  const std::optional<std::string> file = find_above_command(std::filesystem::path("bench") / script);
  if (!file) {
    return Status::runtime_error(
        "peers: bench/" + script +
        " is in none of the folders above the command; run the command of a built clone (.venv/bin/warploom)");
  }
  std::vector<std::string> words = {python.empty() ? default_python() : python, *file};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int question[2], answer[2];
  if (pipe(question) != 0 || pipe(answer) != 0)
    return Status::runtime_error(std::string("peers: no pipe: ") + std::strerror(errno));
  std::signal(SIGPIPE, SIG_IGN);  // a script that died is an error that ask() reports
  std::fflush(nullptr);
  auto state = std::make_unique<State>();
  state->process = fork();
  if (state->process == 0) {
    dup2(question[0], STDIN_FILENO);
    dup2(answer[1], STDOUT_FILENO);
    for (const int end : {question[0], question[1], answer[0], answer[1]}) close(end);
    execvp(argv[0], argv.data());
    std::fprintf(stderr, "warploom: peers: %s cannot be run: %s\n", argv[0], std::strerror(errno));
    _exit(127);
  }
  close(question[0]);
  close(answer[1]);
  state->to = fdopen(question[1], "w");
  state->from = fdopen(answer[0], "r");
  if (state->process < 0) return Status::runtime_error(std::string("peers: no process: ") + std::strerror(errno));
  PeerScript started(std::move(state));
  if (const Result<Json> hello = started.ask({{"hello", 1}}); !hello.ok()) return hello.status();
  return started;
}

Result<Json> PeerScript::ask(const Json& question) {
  std::fprintf(state_->to, "%s\n", question.dump().c_str());
  std::fflush(state_->to);
  std::string line;
  for (int c = std::fgetc(state_->from); c != EOF && c != '\n'; c = std::fgetc(state_->from))
    line += static_cast<char>(c);
  const Json answer = Json::parse(line, nullptr, false);
  if (answer.is_discarded())
    return Status::runtime_error(
        "peers: the Python process ended; its last words are above. Name one that has torch with --python");
  if (answer.contains("error")) return Status::runtime_error("peers: " + answer["error"].get<std::string>());
  return answer;
}

}  // namespace warploom::cli
