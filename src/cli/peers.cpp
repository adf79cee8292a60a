#include "cli/peers.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "cli/numbers.h"

namespace warploom::cli {

Result<Peers> Peers::start(const std::string& python, int threads) {
  Result<PeerScript> script = PeerScript::start("attention_peers.py", python, {"--threads", std::to_string(threads)});
  if (!script.ok()) return script.status();
  return Peers(std::move(*script));
}

Result<std::vector<std::string>> Peers::prepare(const std::string& case_name, const ProblemConfig& config) {
  const bool plain = config.bias == BiasForm::none && config.contexts.empty() && config.targets.empty() &&
                     !config.left && config.lengths_k.empty() && config.key_heads_or_default() == config.heads &&
                     config.value_dim_or_default() == config.head_dim;
  if (!plain) return std::vector<std::string>();  // the script knows full and causal attention without a bias
  const Result<Json> answer = script_.ask({{"prepare", case_name},
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
  const Result<Json> answer = script_.ask({{"measure", implementation}, {"backward", backward}});
  if (!answer.ok()) return answer.status();
  return answer->at("ms").get<double>();
}

}  // namespace warploom::cli
