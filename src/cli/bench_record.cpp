#include "cli/bench_record.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/terminal.h"
#include "median.h"

namespace warploom::cli {
namespace {

const char* pass_name(const Record& record) {
  return record.backward ? "backward" : "forward";
}

}  // namespace

Json to_json(const Record& record) {
  Json result = {
      {"case", record.case_name},      {"pass", pass_name(record)}, {"implementation", record.implementation},
      {"device", record.device},       {"dtype", record.dtype},     {"median_ms", record.median_ms},
      {"spread_ms", record.spread_ms}, {"tflops", record.tflops},   {"bytes", record.bytes},
      {"peak_memory", nullptr}};
  if (record.peak_memory) result["peak_memory"] = *record.peak_memory;
  return result;
}

std::string to_text(const std::vector<Record>& records) {
  std::map<std::pair<std::string, bool>, double> fastest, ours;
  for (const Record& record : records) {
    const auto key = std::pair(record.case_name, record.backward);
    if (!fastest.contains(key) || record.median_ms < fastest[key]) fastest[key] = record.median_ms;
    if (record.implementation == "warploom") ours[key] = record.median_ms;
  }
  std::string text;
  for (std::size_t first = 0; first < records.size();) {
    std::size_t last = first;
    while (last < records.size() && records[last].case_name == records[first].case_name) ++last;
    const bool has_memory = std::any_of(records.begin() + static_cast<std::ptrdiff_t>(first),
                                        records.begin() + static_cast<std::ptrdiff_t>(last),
                                        [](const Record& record) { return record.peak_memory.has_value(); });
    const bool has_peers = ours.contains({records[first].case_name, records[first].backward}) && last - first > 2;
    std::vector<std::string> header = {"pass", "implementation", "time", "spread", "rate", "of roofline"};
    if (has_memory) header.push_back("memory");
    if (has_peers) header.push_back("");
    std::vector<std::vector<std::string>> rows;
    for (std::size_t index = first; index < last; ++index) {
      const Record& record = records[index];
      const auto key = std::pair(record.case_name, record.backward);
      std::string time = duration(record.median_ms);
      if (record.median_ms == fastest[key]) time = paint(Colour::green, time);
      rows.push_back({pass_name(record), record.implementation, time, duration(record.spread_ms),
                      flop_rate(record.tflops * 1e12),
                      record.roofline_share ? format("%.1f %%", 100 * *record.roofline_share) : ""});
      if (has_memory) rows.back().push_back(record.peak_memory ? bytes(static_cast<double>(*record.peak_memory)) : "");
      const bool peer = record.implementation != "warploom" && ours.contains(key);
      if (has_peers)
        rows.back().push_back(peer ? format("warploom takes 1/%.1f of it", record.median_ms / ours[key]) : "");
    }
    text += (text.empty() ? "" : "\n") + paint(Colour::cyan, records[first].case_name) + "\n" + table(header, rows, 2);
    first = last;
  }
  return text;
}

std::string to_csv(const std::vector<Record>& records) {
  std::string text =
      "case,pass,implementation,device,dtype,median_ms,spread_ms,tflops,bytes,peak_memory,roofline_share\n";
  for (const Record& record : records) {
    std::string device = record.device;
    std::replace(device.begin(), device.end(), '"', '\'');
    text += format("%s,%s,%s,\"%s\",%s,%.6g,%.6g,%.6g,%lld,", record.case_name.c_str(), pass_name(record),
                   record.implementation.c_str(), device.c_str(), record.dtype.c_str(), record.median_ms,
                   record.spread_ms, record.tflops, static_cast<long long>(record.bytes));
    if (record.peak_memory) text += std::to_string(*record.peak_memory);
    text += ",";
    if (record.roofline_share) text += format("%.4g", *record.roofline_share);
    text += "\n";
  }
  return text;
}

double Timings::median() const {
  std::vector<double> all;
  for (const std::vector<double>& round : rounds_) all.insert(all.end(), round.begin(), round.end());
  return median_of(std::move(all));
}

double Timings::spread() const {
  double least = 0, most = 0;
  bool first = true;
  for (const std::vector<double>& round : rounds_) {
    if (round.empty()) continue;
    const double value = median_of(round);
    least = first ? value : std::min(least, value);
    most = first ? value : std::max(most, value);
    first = false;
  }
  return most - least;
}

}  // namespace warploom::cli
