// Benchmark records: the form of `warploom bench --json`, of reports and of the tables in the terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/json.h"

namespace warploom::cli {

struct Record {
  std::string case_name;
  bool backward = false;
  std::string implementation;  ///< "warploom" is what a caller gets by default
  std::string device;
  std::string dtype;
  double median_ms = 0;
  double spread_ms = 0;  ///< between the fastest and the slowest round's median
  double tflops = 0;
  std::int64_t bytes = 0;                   ///< inputs and outputs
  std::optional<std::int64_t> peak_memory;  ///< bytes in use beyond them at the highest point; nothing: not known
  std::optional<double> roofline_share;     ///< of what the machine allows; in the table only
};

/// {"case", "pass", "implementation", "device", "dtype", "median_ms", "spread_ms", "tflops", "bytes", "peak_memory"}
Json to_json(const Record& record);
/// The table for a terminal; the fastest implementation of a pass is bold.
std::string to_text(const std::vector<Record>& records);
std::string to_csv(const std::vector<Record>& records);

/// The times of one implementation's runs, round by round.
class Timings {
 public:
  void new_round() { rounds_.emplace_back(); }
  void add(double milliseconds) { rounds_.back().push_back(milliseconds); }
  double median() const;  ///< of all runs
  double spread() const;  ///< largest minus smallest median of a round

 private:
  std::vector<std::vector<double>> rounds_;
};

}  // namespace warploom::cli
