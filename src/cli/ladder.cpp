#include "cli/ladder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "cli/beside_command.h"
#include "cli/terminal.h"

namespace warploom::cli {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Texts live as long as the lookup, which hands out views of them.
class ExampleSources {
 public:
  explicit ExampleSources(std::optional<std::string> folder) : folder_(std::move(folder)) {}

  std::optional<std::string_view> find(std::string_view path) {
    if (const std::optional<std::string_view> embedded = gpu::embedded_source(path)) return embedded;
    if (!folder_) return std::nullopt;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [entry, fresh] = texts_.try_emplace(std::string(path));
    if (fresh) entry->second = read_file(fs::path(*folder_) / path);
    if (!entry->second) return std::nullopt;
    return *entry->second;
  }

 private:
  std::optional<std::string> folder_;
  std::mutex mutex_;
  std::map<std::string, std::optional<std::string>, std::less<>> texts_;
};

}  // namespace

Result<std::vector<Rung>> read_ladder(const std::string& folder) {
  const fs::path relative = fs::path("examples") / folder / "ladder.json";
  const std::optional<std::string> path = find_above_command(relative);
  if (!path) {
    return Status::runtime_error(relative.string() +
                                 " is in none of the folders above the command; run the command of a built clone "
                                 "(.venv/bin/warploom)");
  }
  const Json table = Json::parse(read_file(*path).value_or(""), nullptr, false);
  if (table.is_discarded() || !table.contains("rungs"))
    return Status::runtime_error(*path + " is no table of rungs; restore it from the repository");
  std::vector<Rung> rungs;
  for (const Json& row : table["rungs"]) rungs.push_back({row.at("name"), row.at("idea"), row});
  return rungs;
}

Result<std::vector<Rung>> choose_rungs(std::vector<Rung> rungs, const std::vector<std::string>& wanted) {
  if (wanted.empty()) return rungs;
  std::string names;
  for (const Rung& rung : rungs) names += (names.empty() ? "" : ", ") + rung.name;
  std::erase_if(rungs, [&wanted](const Rung& rung) {
    return std::none_of(wanted.begin(), wanted.end(),
                        [&rung](const std::string& part) { return rung.name.find(part) != std::string::npos; });
  });
  if (rungs.empty()) {
    std::string asked;
    for (const std::string& part : wanted) asked += (asked.empty() ? "" : " or ") + part;
    return Status::invalid_value("no rung's name contains " + asked + "; there are " + names);
  }
  return rungs;
}

gpu::KernelRequest rung_request(const std::string& folder, const Rung& rung, const std::vector<std::string>& fields,
                                const std::string& kernel, const gpu::Architecture& architecture) {
  std::string values;
  for (const std::string& field : fields)
    values += (values.empty() ? "." : ", .") + field + " = " + std::to_string(rung.row.at(field).get<int>());
  gpu::KernelRequest request;
  request.entry_file = folder + "/" + rung.row.at("file").get<std::string>();
  request.config_text = "#include \"" + folder + "/call.h\"\nnamespace warploom::" + folder +
                        " {\ninline constexpr Rung kRung = {" + values + "};\n}\n";
  request.kernel_name = kernel;
  request.architecture = architecture;
  return request;
}

Result<std::vector<RungCode>> compile_rungs(const std::vector<gpu::KernelRequest>& requests) {
  gpu::CompilerOptions options;
  options.settings = gpu::settings_from_environment();
  const auto sources = std::make_shared<ExampleSources>(find_above_command("examples"));
  options.sources = [sources](std::string_view path) { return sources->find(path); };
  gpu::Compiler compiler(std::move(options));
  std::vector<RungCode> codes;
  for (const Result<gpu::CubinPointer>& cubin : compiler.get_many(requests)) {
    if (!cubin.ok()) return cubin.status();
    RungCode code{*cubin, std::nullopt};
    if (const std::optional<std::string> listing = disassemble((*cubin)->image)) code.loop = inner_loop(*listing);
    codes.push_back(std::move(code));
  }
  return codes;
}

Json to_json(const Rung& rung, const RungCode& code) {
  const gpu::KernelResources& used = code.cubin->resources;
  Json json{{"rung", rung.name},
            {"idea", rung.idea},
            {"registers", used.registers},
            {"spill_bytes", used.spill_store_bytes + used.spill_load_bytes},
            {"performance_warnings", used.performance_warnings}};
  if (code.loop) {
    json["instructions"] = code.loop->instructions;
    json["mma"] = code.loop->mma;
  }
  return json;
}

std::string others_per_mma(const RungCode& code) {
  return code.loop ? format("%.2f", code.loop->others_per_mma()) : "-";
}

}  // namespace warploom::cli
