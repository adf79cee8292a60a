// One figure of a scenario over any two of its parameters, and its heat map.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/parallel.h"
#include "sim/parameters.h"
#include "sim/scenario.h"

namespace warploom::sim {

/// A parameter and the values it takes, as text.
struct Axis {
  std::string name;
  std::vector<std::string> values;
};

/// "stages=2..8", "latency=300..3000:300" (step), "bandwidth=16..256*2" (factor), "scheme=sync,cp_async" (list).
/// At most 100,000 values.
Result<Axis> parse_axis(const std::string& text);

enum class Metric { tensor_percent, memory_percent, makespan };
Result<Metric> parse_metric(const std::string& text);  ///< "TC", "MEM", "makespan"
const char* to_string(Metric metric);

enum class ScenarioKind { gemm, attention };
Result<ScenarioKind> parse_kind(const std::string& text);  ///< "gemm", "attention"

struct SweepRequest {
  ScenarioKind kind = ScenarioKind::gemm;
  Settings base;
  Axis x;
  Axis y;  ///< without a name: x alone
  Metric metric = Metric::tensor_percent;
};

struct Sweep {
  SweepRequest request;
  std::vector<std::optional<double>> values;  ///< row by row: [y][x]; none where a point is refused or was not reached
  std::vector<std::string> refusals;          ///< the different reasons why points were refused
  std::int64_t done = 0;
  std::int64_t points() const { return static_cast<std::int64_t>(values.size()); }
};

/// Runs every point. A point that validate() refuses stays empty and its reason is kept; an unknown parameter, or no
/// point that can run, is an error. When stopped, what is done is returned.
Result<Sweep> sweep(const SweepRequest& request, const Control& control = {});

/// Smallest and largest value; none when there is no value.
std::optional<std::pair<double, double>> bounds(const Sweep& sweep);

/// The heat map as self-contained SVG, hover titles with both parameters and the value.
std::string heat_map_svg(const Sweep& sweep);

/// The colour of a share of the range in [0, 1], dark to bright, as 0xrrggbb.
unsigned heat_colour(double share);

/// "95.96" or "68294": as the metric is printed.
std::string value_text(const Sweep& sweep, double value);

}  // namespace warploom::sim
