#include "sim/parameters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace warploom::sim {
namespace {

std::string text_of(const std::string& name, const std::string& text) {
  return name + " = '" + text + "'";
}

// A setter for a member reached by `member(scenario)`.
template <typename Scenario, typename Member>
std::function<Status(Scenario&, const std::string&)> setter(std::string name, Member member) {
  return [name = std::move(name), member](Scenario& scenario, const std::string& text) -> Status {
    auto& field = member(scenario);
    using T = std::remove_reference_t<decltype(field)>;
    if constexpr (std::is_same_v<T, double>) {
      const Result<double> value = parse_number(name, text);
      if (!value.ok()) return value.status();
      field = *value;
    } else if constexpr (std::is_same_v<T, bool>) {
      if (text != "true" && text != "false")
        return Status::invalid_value(text_of(name, text) + " must be true or false");
      field = text == "true";
    } else {
      const Result<std::int64_t> value = parse_whole(name, text);
      if (!value.ok()) return value.status();
      field = *value;
    }
    return {};
  };
}

template <typename Scenario, typename Enum, typename Member>
Parameter<Scenario> choice(std::string name, std::string help, std::vector<std::pair<std::string, Enum>> words,
                           Member member) {
  std::string list;
  for (const auto& [word, value] : words) list += (list.empty() ? "" : "|") + word;
  auto set = [name, list, words, member](Scenario& scenario, const std::string& text) -> Status {
    for (const auto& [word, value] : words)
      if (word == text) {
        member(scenario) = value;
        return {};
      }
    return Status::invalid_value(text_of(name, text) + " must be one of " + list);
  };
  return {std::move(name), list, std::move(help), std::move(set)};
}

template <typename Scenario>
class Table {
 public:
  template <typename Member>
  Table& add(const std::string& name, const std::string& help, Member member) {
    using T = std::remove_reference_t<decltype(member(std::declval<Scenario&>()))>;
    const char* value = std::is_same_v<T, double> ? "X" : std::is_same_v<T, bool> ? "true|false" : "N";
    rows_.push_back({name, value, help, setter<Scenario>(name, member)});
    return *this;
  }
  Table& add(Parameter<Scenario> parameter) {
    rows_.push_back(std::move(parameter));
    return *this;
  }
  // The switches of section 4.1.
  Table& add_machine() {
    rows_.push_back({"machine", "NAME|FILE.json", "h100, h200, a100, b200 or a machine file",
                     [](Scenario& scenario, const std::string& text) -> Status {
                       Result<Machine> machine = find_machine(text);
                       if (!machine.ok()) return machine.status();
                       scenario.machine = *machine;
                       return {};
                     }});
    const auto of = [](auto field) { return [field](Scenario& s) -> auto& { return s.machine.*field; }; };
    add("tensor_rate", "tensor core, FLOP per cycle", of(&Machine::tensor_rate));
    add("bandwidth", "loads, bytes per cycle", of(&Machine::bandwidth));
    add("latency", "cycles from the end of a transfer to its arrival", of(&Machine::latency));
    add("issue_cp", "cycles to issue a stage with cp.async", of(&Machine::issue_cp));
    add("issue_tma", "cycles to issue a stage with TMA", of(&Machine::issue_tma));
    add("exp_rate", "exponentials per cycle", of(&Machine::exp_rate));
    add("fma_rate", "CUDA-core operations per cycle", of(&Machine::fma_rate));
    add("clock_ghz", "clock, only to print microseconds", of(&Machine::clock_ghz));
    add("shared_memory", "bytes of shared memory of an SM", of(&Machine::shared_memory));
    add("registers", "32-bit registers of an SM", of(&Machine::registers));
    return *this;
  }
  std::vector<Parameter<Scenario>> take() { return std::move(rows_); }

 private:
  std::vector<Parameter<Scenario>> rows_;
};

std::vector<Parameter<GemmScenario>> gemm_table() {
  using S = GemmScenario;
  Table<S> table;
  table.add(choice<S, Scheme>("scheme", "how loads and products are scheduled",
                              {{"sync", Scheme::sync},
                               {"register", Scheme::register_staged},
                               {"cp_async", Scheme::cp_async},
                               {"specialized", Scheme::specialized}},
                              [](S& s) -> auto& { return s.scheme; }));
  table.add_machine();
  table.add("k", "length of the sum", [](S& s) -> auto& { return s.k; });
  table.add("tiles", "output tiles, one after the other", [](S& s) -> auto& { return s.tiles; });
  table.add("consumers", "consumer warpgroups (2: ping-pong)", [](S& s) -> auto& { return s.consumers; });
  table.add("stages", "slots of the ring in shared memory", [](S& s) -> auto& { return s.stages; });
  table.add(choice<S, Producer>("producer", "what the producer warp issues with",
                                {{"tma", Producer::tma}, {"cp_async", Producer::cp_async}},
                                [](S& s) -> auto& { return s.producer; }));
  table.add({"register_copy", "N", "cycles to copy a stage from registers to shared memory",
             [](S& s, const std::string& text) -> Status {
               const Result<std::int64_t> value = parse_whole("register_copy", text);
               if (!value.ok()) return value.status();
               s.register_copy = *value;
               return {};
             }});
  table.add("epilogue_scale", "multiplies both parts of the epilogue", [](S& s) -> auto& { return s.epilogue_scale; });
  table.add("tile_m", "rows of the output tile", [](S& s) -> auto& { return s.tile_m; });
  table.add("tile_n", "columns of the output tile", [](S& s) -> auto& { return s.tile_n; });
  table.add("tile_k", "length of a step", [](S& s) -> auto& { return s.tile_k; });
  table.add("element_bytes", "bytes of an operand", [](S& s) -> auto& { return s.element_bytes; });
  return table.take();
}

std::vector<Parameter<AttentionScenario>> attention_table() {
  using S = AttentionScenario;
  Table<S> table;
  table.add(choice<S, Variant>(
      "variant", "how products and the elementwise step are scheduled",
      {{"serial", Variant::serial}, {"inter", Variant::inter}, {"intra", Variant::intra}, {"both", Variant::both}},
      [](S& s) -> auto& { return s.variant; }));
  table.add_machine();
  table.add("blocks", "(query tile, key block) pairs of the CTA", [](S& s) -> auto& { return s.blocks; });
  table.add("rows", "query rows of a warpgroup", [](S& s) -> auto& { return s.rows; });
  table.add("keys", "keys of a block", [](S& s) -> auto& { return s.keys; });
  table.add("head_dim", "head dimension", [](S& s) -> auto& { return s.head_dim; });
  table.add("operations", "CUDA-core operations per score", [](S& s) -> auto& { return s.operations; });
  table.add("fp8", "products at twice the tensor rate", [](S& s) -> auto& { return s.fp8; });
  table.add(choice<S, Step>("step", "what stands between the products",
                            {{"softmax", Step::softmax}, {"hstu", Step::hstu}}, [](S& s) -> auto& { return s.step; }));
  table.add(choice<S, Pass>("pass", "two products a block, or backward's five, or those of its two kernels",
                            {{"forward", Pass::forward},
                             {"backward", Pass::backward},
                             {"backward-keys", Pass::backward_keys},
                             {"backward-dq", Pass::backward_dq}},
                            [](S& s) -> auto& { return s.pass; }));
  table.add("bias_bytes", "bytes of bias loaded per score", [](S& s) -> auto& { return s.bias_bytes; });
  table.add("cheap_blocks", "blocks that a mask makes cheap", [](S& s) -> auto& { return s.cheap_blocks; });
  table.add("cheap_share", "their cost as a share of a full block's", [](S& s) -> auto& { return s.cheap_share; });
  table.add("kv_stages", "K/V blocks in the ring (0: loads are hidden)", [](S& s) -> auto& { return s.kv_stages; });
  return table.take();
}

}  // namespace

Result<std::int64_t> parse_whole(const std::string& name, const std::string& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  if (const auto [stop, error] = std::from_chars(text.data(), end, value); error == std::errc() && stop == end)
    return value;
  const Result<double> number = parse_number(name, text);
  if (number.ok() && std::nearbyint(*number) == *number && std::abs(*number) < 9e15)
    return static_cast<std::int64_t>(*number);
  return Status::invalid_value(text_of(name, text) + " must be a whole number");
}

Result<double> parse_number(const std::string& name, const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return Status::invalid_value(text_of(name, text) + " must be a number");
  return value;
}

const std::vector<Parameter<GemmScenario>>& parameters(const GemmScenario&) {
  static const std::vector<Parameter<GemmScenario>> table = gemm_table();
  return table;
}

const std::vector<Parameter<AttentionScenario>>& parameters(const AttentionScenario&) {
  static const std::vector<Parameter<AttentionScenario>> table = attention_table();
  return table;
}

std::vector<std::string> without_effect(const GemmScenario& scenario, const Settings& settings) {
  const bool is_specialized = scenario.scheme == Scheme::specialized;
  const bool tma = is_specialized && scenario.producer == Producer::tma;
  std::vector<std::string> names;
  for (const auto& [name, text] : settings) {
    const bool idle = ((name == "producer" || name == "consumers") && !is_specialized) ||
                      (name == "stages" && !is_specialized && scenario.scheme != Scheme::cp_async) ||
                      (name == "register_copy" && scenario.scheme != Scheme::register_staged) ||
                      (name == "issue_cp" && tma) || (name == "issue_tma" && !tma) || name == "exp_rate";
    if (idle) names.push_back(name);
  }
  return names;
}

std::vector<std::string> without_effect(const AttentionScenario& scenario, const Settings& settings) {
  const bool loads = scenario.kv_stages > 0, bias = scenario.bias_bytes > 0, adds = scenario.pass == Pass::backward;
  std::vector<std::string> names;
  for (const auto& [name, text] : settings) {
    const bool idle = name == "issue_cp" || (name == "issue_tma" && !loads) || (name == "latency" && !loads && !bias) ||
                      (name == "bandwidth" && !loads && !bias && !adds) ||
                      (name == "cheap_share" && scenario.cheap_blocks == 0);
    if (idle) names.push_back(name);
  }
  return names;
}

template <typename Scenario>
Status configure(Scenario& scenario, const Settings& settings) {
  for (const bool machine_turn : {true, false})
    for (const auto& [name, text] : settings) {
      if ((name == "machine") != machine_turn) continue;
      const std::vector<Parameter<Scenario>>& table = parameters(scenario);
      const auto found =
          std::find_if(table.begin(), table.end(),
                       [&, &wanted = name](const Parameter<Scenario>& parameter) { return parameter.name == wanted; });
      if (found == table.end()) {
        std::string known;
        for (const Parameter<Scenario>& parameter : table) known += (known.empty() ? "" : ", ") + parameter.name;
        return Status::invalid_value("'" + name + "' is not a parameter; known are " + known);
      }
      if (Status status = found->set(scenario, text); !status.ok()) return status;
    }
  return validate(scenario);
}

template Status configure(GemmScenario&, const Settings&);
template Status configure(AttentionScenario&, const Settings&);

}  // namespace warploom::sim
