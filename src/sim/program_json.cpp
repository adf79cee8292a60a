#include "sim/program_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace warploom::sim {
namespace {

using Json = nlohmann::ordered_json;

// Reads the parts of one operation one after the other; the first thing that is wrong is kept.
class Reader {
 public:
  Reader(const Model& model, const Json& operation, std::string where)
      : model_(model), json_(operation), where_(std::move(where)) {
    if (!json_.is_array() || json_.empty() || !json_[0].is_string())
      refuse("must be an array that begins with use, async, busy, wait or arrive");
  }

  std::string text(const char* what) {
    const Json* value = next(what);
    if (value != nullptr && !value->is_string()) refuse(std::string(what) + " = " + value->dump() + " must be text");
    return failed() ? std::string() : value->get<std::string>();
  }
  Cycles whole(const char* what) {
    const Json* value = next(what);
    if (value != nullptr && !value->is_number_integer())
      refuse(std::string(what) + " = " + value->dump() + " must be a whole number");
    return failed() ? 0 : value->get<Cycles>();
  }
  char tag() {
    const std::string letter = text("tag");
    if (!failed() && (letter.size() != 1 || letter[0] <= ' ' || letter[0] > '~' || letter[0] == '.'))
      refuse("tag = '" + letter + "' must be one visible ASCII character other than '.'");
    return failed() ? ' ' : letter[0];
  }
  template <typename Index>
  Index name_in(const std::vector<std::string>& names, const char* what) {
    const std::string name = text(what);
    const auto found = std::find(names.begin(), names.end(), name);
    if (!failed() && found == names.end()) refuse(std::string(what) + " '" + name + "' is not listed in the model");
    return failed() ? Index{0} : static_cast<Index>(found - names.begin());
  }
  bool more() const { return !failed() && at_ < json_.size(); }
  void end() {
    if (more()) refuse("has " + std::to_string(json_.size() - at_) + " parts too many");
  }
  void refuse(const std::string& why) {
    if (!failed()) status_ = Status::invalid_value(where_ + ": " + why);
  }
  bool failed() const { return !status_.ok(); }
  const Status& status() const { return status_; }
  const Model& model() const { return model_; }

 private:
  const Json* next(const char* what) {
    if (failed()) return nullptr;
    if (at_ >= json_.size()) {
      refuse(std::string("lacks its ") + what);
      return nullptr;
    }
    return &json_[at_++];
  }

  const Model& model_;
  const Json& json_;
  std::string where_;
  std::size_t at_ = 0;
  Status status_;
};

void read_operation(Reader& reader, Executor& executor) {
  const std::string kind = reader.text("kind");
  if (reader.failed()) return;
  const Model& model = reader.model();
  if (kind == "use") {
    const auto resource = reader.name_in<Resource>(model.resources, "resource");
    const Cycles cycles = reader.whole("cycles");
    executor.use(resource, cycles, reader.tag());
  } else if (kind == "async") {
    const auto resource = reader.name_in<Resource>(model.resources, "resource");
    const Cycles cycles = reader.whole("cycles");
    const char tag = reader.tag();
    const Cycles latency = reader.whole("latency");
    executor.async(resource, cycles, tag, latency, reader.name_in<Barrier>(model.barriers, "barrier"));
  } else if (kind == "busy") {
    const Cycles cycles = reader.whole("cycles");
    executor.busy(cycles, reader.more() ? reader.tag() : 'b');
  } else if (kind == "wait") {
    const auto barrier = reader.name_in<Barrier>(model.barriers, "barrier");
    const Cycles count = reader.whole("count");
    if (count < 0) reader.refuse("count = " + std::to_string(count) + " must be 0 or more");
    executor.wait(barrier, count);
  } else if (kind == "arrive") {
    executor.arrive(reader.name_in<Barrier>(model.barriers, "barrier"));
  } else {
    reader.refuse("'" + kind + "' must be one of use|async|busy|wait|arrive");
  }
  reader.end();
}

Status read_names(const Json& json, const char* field, std::vector<std::string>& names) {
  const auto found = json.find(field);
  if (found == json.end()) return {};
  if (!found->is_array()) return Status::invalid_type(std::string(field) + " must be an array of names");
  names.clear();
  for (const Json& name : *found) {
    if (!name.is_string())
      return Status::invalid_type(std::string(field) + " holds " + name.dump() + ", which is not a name");
    if (std::find(names.begin(), names.end(), name.get<std::string>()) != names.end())
      return Status::invalid_value(std::string(field) + " holds " + name.dump() + " twice");
    names.push_back(name.get<std::string>());
  }
  return {};
}

}  // namespace

Result<Model> model_from_json(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Status::invalid_value("the program is not a JSON object");
  Model model = sm_model();
  if (Status status = read_names(json, "resources", model.resources); !status.ok()) return status;
  if (Status status = read_names(json, "barriers", model.barriers); !status.ok()) return status;
  if (model.resources.size() > 60000) return Status::invalid_value("resources holds more than 60,000 names");
  if (const auto legend = json.find("legend"); legend != json.end() && legend->is_object())
    for (const auto& item : legend->items())
      if (item.key().size() == 1 && item.value().is_string())
        model.legend.emplace_back(item.key()[0], item.value().get<std::string>());
  const auto executors = json.find("executors");
  if (executors == json.end() || !executors->is_array())
    return Status::invalid_value("the program lacks 'executors', an array");
  for (const Json& entry : *executors) {
    const auto name = entry.is_object() ? entry.find("name") : entry.end();
    const auto program = entry.is_object() ? entry.find("program") : entry.end();
    if (!entry.is_object() || name == entry.end() || !name->is_string() || program == entry.end() ||
        !program->is_array())
      return Status::invalid_value("an executor must be {\"name\": text, \"program\": [operations]}");
    Executor executor{name->get<std::string>(), {}};
    for (std::size_t i = 0; i < program->size(); ++i) {
      Reader reader(model, (*program)[i], "executor " + executor.name + ", operation " + std::to_string(i));
      read_operation(reader, executor);
      if (reader.failed()) return reader.status();
    }
    model.add_executor(std::move(executor));
  }
  if (Status status = validate(model); !status.ok()) return status;
  return model;
}

Result<Run> run_program(const std::string& text, const Machine& machine, const std::string& title, RunOptions options) {
  Result<Model> model = model_from_json(text);
  if (!model.ok()) return model.status();
  Result<Timeline> timeline = simulate(*model, options);
  if (!timeline.ok()) return timeline.status();
  return Run{title, machine, std::move(*model), std::move(*timeline), std::nullopt, {}};
}

}  // namespace warploom::sim
