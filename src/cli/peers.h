// Other implementations of the same problem, run by bench/attention_peers.py in a Python process that stays alive, so
// that their measurements can stand between ours.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/json.h"
#include "cli/problem.h"
#include "warploom/status.h"

namespace warploom::cli {

class Peers {
 public:
  /// Starts `python` (empty: the one beside the command, else python3) with the script. Error: runtime_error that says
  /// what is missing: the script, the interpreter, torch.
  static Result<Peers> start(const std::string& python, int threads);
  Peers(Peers&&) noexcept;
  Peers& operator=(Peers&&) noexcept;
  ~Peers();

  /// Prepares a problem; names of the implementations that can run it.
  Result<std::vector<std::string>> prepare(const std::string& case_name, const ProblemConfig& config);
  /// Milliseconds of one run.
  Result<double> measure(const std::string& implementation, bool backward);

 private:
  struct State;
  explicit Peers(std::unique_ptr<State> state);
  Result<Json> ask(const Json& question);
  std::unique_ptr<State> state_;
};

}  // namespace warploom::cli
