#include "cli/info_command.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/json_text.h"
#include "cli/library_text.h"

namespace warploom::cli {
namespace {

int info(const JsonOption& json) {
  const Result<Json> information = library_json(warploom_info);
  if (!information.ok()) return report(information.status());
  if (json.prints_text()) std::fputs(json_text(*information).c_str(), stdout);
  return report_if_error(json.write(*information));
}

}  // namespace

void add_info_command(CLI::App& app) {
  auto json = std::make_shared<JsonOption>();
  CLI::App* command = add_command(app, "info", "Devices, libraries found, cache, versions",
                                  "  warploom info\n"
                                  "  warploom info --json info.json    attach this to a bug report\n");
  json->add_to(*command);
  on_run(*command, [json] { return info(*json); });
}

}  // namespace warploom::cli
