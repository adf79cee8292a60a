#include "sim/machine.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace warploom::sim {
namespace {

Machine h100() {
  return {};
}

Machine h200() {
  Machine machine = h100();
  machine.name = "h200";
  machine.dram_tb_per_s = 4.8;
  return machine;
}

Machine a100() {
  Machine machine = h100();
  machine.name = "a100";
  machine.tensor_rate = 2048;
  machine.clock_ghz = 1.41;
  machine.shared_memory = 164 * 1024;
  machine.sms = 108;
  machine.dram_tb_per_s = 2.039;
  machine.has_tma = false;
  return machine;
}

Machine b200() {
  Machine machine = h100();
  machine.name = "b200";
  machine.tensor_rate = 8192;
  machine.sms = 148;
  machine.dram_tb_per_s = 8.0;
  return machine;
}

// Every field once: its name, and how to read and write it.
template <typename Visitor>
void visit_fields(Machine& machine, Visitor&& visit) {
  visit("name", machine.name);
  visit("tensor_rate", machine.tensor_rate);
  visit("bandwidth", machine.bandwidth);
  visit("latency", machine.latency);
  visit("issue_cp", machine.issue_cp);
  visit("issue_tma", machine.issue_tma);
  visit("exp_rate", machine.exp_rate);
  visit("fma_rate", machine.fma_rate);
  visit("register_copy_bandwidth", machine.register_copy_bandwidth);
  visit("clock_ghz", machine.clock_ghz);
  visit("shared_memory", machine.shared_memory);
  visit("registers", machine.registers);
  visit("sms", machine.sms);
  visit("dram_tb_per_s", machine.dram_tb_per_s);
  visit("has_tma", machine.has_tma);
}

std::string number_text(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

template <typename T>
bool holds(const nlohmann::json& value) {
  if constexpr (std::is_same_v<T, std::string>) return value.is_string();
  if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
  if constexpr (std::is_same_v<T, double>) return value.is_number();
  return value.is_number_integer();
}

}  // namespace

const std::vector<Machine>& known_machines() {
  static const std::vector<Machine> machines = {h100(), h200(), a100(), b200()};
  return machines;
}

Result<Machine> find_machine(const std::string& name) {
  for (const Machine& machine : known_machines())
    if (machine.name == name) return machine;
  if (!name.ends_with(".json"))
    return Status::invalid_value("machine = '" + name +
                                 "' is not known; use h100, h200, a100, b200 or the path of a .json machine file");
  std::ifstream file(name);
  if (!file)
    return Status::invalid_value("machine = '" + name + "' cannot be read; give the path of a JSON machine file");
  std::ostringstream text;
  text << file.rdbuf();
  return machine_from_json(text.str(), name);
}

Result<Machine> machine_from_json(const std::string& text, const std::string& where) {
  const nlohmann::json object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return Status::invalid_value("machine file " + where + " is not a JSON object");
  Machine machine;
  Status status;
  std::vector<std::string> names;
  visit_fields(machine, [&](const char* name, auto& field) {
    names.emplace_back(name);
    if (!status.ok()) return;
    const auto found = object.find(name);
    if (found == object.end()) {
      status = Status::invalid_value("machine file " + where + " lacks the field '" + name +
                                     "'; start from `warploom simulate machine h100 --json`");
    } else if (!holds<std::remove_reference_t<decltype(field)>>(*found)) {
      status =
          Status::invalid_type("machine file " + where + ": '" + name + "' = " + found->dump() + " has the wrong type");
    } else {
      found->get_to(field);
    }
  });
  if (!status.ok()) return status;
  for (const auto& item : object.items())
    if (std::find(names.begin(), names.end(), item.key()) == names.end())
      return Status::invalid_value("machine file " + where + " has the unknown field '" + item.key() + "'; remove it");
  if (status = validate(machine); !status.ok())
    return Status(status.code(), "machine file " + where + ": " + status.message());
  return machine;
}

std::string machine_to_json(const Machine& machine) {
  nlohmann::ordered_json object;
  Machine copy = machine;
  visit_fields(copy, [&](const char* name, const auto& field) { object[name] = field; });
  return object.dump(2);
}

Status validate(const Machine& machine) {
  Status status;
  Machine copy = machine;
  visit_fields(copy, [&](const char* name, const auto& field) {
    using T = std::remove_cvref_t<decltype(field)>;
    if (!status.ok()) return;
    const std::string field_name(name);
    const bool cost = field_name == "latency" || field_name.starts_with("issue_");
    if constexpr (std::is_same_v<T, double>) {
      if (!(field > 0) || !std::isfinite(field))
        status = Status::invalid_value(field_name + " = " + number_text(field) + " must be a finite number above 0");
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      if (field < (cost ? 0 : 1) || field > kLongestOperation)
        status = Status::invalid_value(field_name + " = " + std::to_string(field) + " must lie in [" +
                                       (cost ? "0" : "1") + ", 2^36]");
    }
  });
  return status;
}

Cycles cycles_for(double amount, double rate) {
  const double exact = amount / rate;
  if (!(exact < static_cast<double>(kLongestOperation))) return kLongestOperation + 1;
  // A quotient that is whole but for the rounding of the division stays as it is.
  const double nearest = std::nearbyint(exact);
  const double whole = std::abs(exact - nearest) <= 1e-9 ? nearest : std::ceil(exact);
  return static_cast<Cycles>(whole);
}

double microseconds(const Machine& machine, Cycles cycles) {
  return static_cast<double>(cycles) / (machine.clock_ghz * 1e3);
}

}  // namespace warploom::sim
