// A Python script of bench/ that stays alive and answers questions, one line of JSON each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/json.h"
#include "warploom/status.h"

namespace warploom::cli {

class PeerScript {
 public:
  /// Starts `python` (empty: default_python()) with bench/`script`, whose first answer is to {"hello": 1}. Error:
  /// runtime_error that says what is missing: the script, the interpreter, torch.
  static Result<PeerScript> start(const std::string& script, const std::string& python,
                                  const std::vector<std::string>& arguments);
  PeerScript(PeerScript&&) noexcept;
  PeerScript& operator=(PeerScript&&) noexcept;
  ~PeerScript();

  /// Error: runtime_error with the script's "error", or when it has ended.
  Result<Json> ask(const Json& question);

 private:
  struct State;
  explicit PeerScript(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace warploom::cli
