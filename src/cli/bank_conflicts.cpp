#include "cli/bank_conflicts.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>

namespace warploom::cli {
namespace {

constexpr const char* conflicts_metric = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum";
constexpr const char* wavefronts_metric = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum";

/// The cells of a line of quoted values.
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells;
  for (std::size_t at = line.find('"'); at != std::string_view::npos; at = line.find('"', at + 1)) {
    const std::size_t end = line.find('"', at + 1);
    if (end == std::string_view::npos) break;
    cells.emplace_back(line.substr(at + 1, end - at - 1));
    at = end;
  }
  return cells;
}

double number_of(std::string text) {
  std::erase(text, ',');
  return std::strtod(text.c_str(), nullptr);
}

std::string quoted(const std::string& word) {
  return "'" + word + "'";
}

}  // namespace

std::vector<double> conflict_shares(std::string_view csv) {
  std::vector<std::string> header;
  std::vector<std::string> ids;  // launches, in order
  std::map<std::string, std::map<std::string, double>> values;
  while (!csv.empty()) {
    const std::size_t end = csv.find('\n');
    const std::vector<std::string> cells = cells_of(csv.substr(0, end));
    csv.remove_prefix(end == std::string_view::npos ? csv.size() : end + 1);
    if (cells.size() > 2 && cells[0] == "ID") header = cells;
    if (header.empty() || cells.size() != header.size() || cells == header) continue;
    std::string name, value;
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (header[i] == "Metric Name") name = cells[i];
      if (header[i] == "Metric Value") value = cells[i];
    }
    if (!values.contains(cells[0])) ids.push_back(cells[0]);
    values[cells[0]][name] = number_of(value);
  }
  std::vector<double> shares;
  for (const std::string& id : ids) {
    const std::map<std::string, double>& of_launch = values[id];
    const auto conflicts = of_launch.find(conflicts_metric), wavefronts = of_launch.find(wavefronts_metric);
    const bool known = conflicts != of_launch.end() && wavefronts != of_launch.end() && wavefronts->second > 0;
    shares.push_back(known ? conflicts->second / wavefronts->second : -1);
  }
  return shares;
}

std::vector<double> count_bank_conflicts(const std::vector<std::string>& arguments) {
  std::error_code ignored;
  std::string command = "ncu --csv --print-units base --metrics " + std::string(conflicts_metric) + "," +
                        wavefronts_metric + " --kernel-name regex:attention " +
                        quoted(std::filesystem::read_symlink("/proc/self/exe", ignored).string());
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  command += " 2>/dev/null";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  std::string output;
  char part[1 << 12];
  for (std::size_t count = 0; pipe && (count = std::fread(part, 1, sizeof part, pipe.get())) > 0;)
    output.append(part, count);
  return conflict_shares(output);
}

}  // namespace warploom::cli
