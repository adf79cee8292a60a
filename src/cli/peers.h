// Other implementations of the same problem, run by bench/attention_peers.py in a Python process that stays alive, so
// that their measurements can stand between ours.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/peer_script.h"
#include "cli/problem.h"
#include "warploom/status.h"

namespace warploom::cli {

class Peers {
 public:
  /// Starts `python` (empty: the one beside the command, else python3) with the script (peer_script.h).
  static Result<Peers> start(const std::string& python, int threads);

  /// Prepares a problem; names of the implementations that can run it.
  Result<std::vector<std::string>> prepare(const std::string& case_name, const ProblemConfig& config);
  /// Milliseconds of one run.
  Result<double> measure(const std::string& implementation, bool backward);

 private:
  explicit Peers(PeerScript script) : script_(std::move(script)) {}
  PeerScript script_;
};

}  // namespace warploom::cli
