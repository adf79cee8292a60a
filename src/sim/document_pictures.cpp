#include "sim/document_pictures.h"

#include <iterator>

#include "sim/map_pictures.h"
#include "sim/pictures.h"
#include "sim/share.h"
#include "sim/sweep.h"

namespace warploom::sim {
namespace {

GemmScenario gemm(Scheme scheme, std::int64_t stages) {
  GemmScenario scenario;
  scenario.scheme = scheme;
  scenario.stages = stages;
  return scenario;
}

GemmScenario persistent(std::int64_t consumers) {
  GemmScenario scenario = gemm(Scheme::specialized, 4);
  scenario.k = 256;
  scenario.tiles = 8;
  scenario.consumers = consumers;
  return scenario;
}

AttentionScenario attention(Variant variant) {
  AttentionScenario scenario;
  scenario.variant = variant;
  return scenario;
}

AttentionScenario hstu() {
  AttentionScenario scenario = attention(Variant::inter);
  scenario.step = Step::hstu;
  scenario.bias_bytes = 2;
  return scenario;
}

struct Wanted {
  const char* file;
  Scenario scenario;
  Cycles until;
};

}  // namespace

Result<std::vector<DocumentPicture>> document_pictures() {
  const Wanted wanted[] = {
      {"synchronous.svg", gemm(Scheme::sync, 1), 8000},
      {"register-staged.svg", gemm(Scheme::register_staged, 2), 8000},
      {"cp-async-2.svg", gemm(Scheme::cp_async, 2), 8000},
      {"cp-async-3.svg", gemm(Scheme::cp_async, 3), 8000},
      {"specialized.svg", gemm(Scheme::specialized, 4), 8000},
      {"persistent-one.svg", persistent(1), 18000},
      {"persistent-ping-pong.svg", persistent(2), 18000},
      {"attention-serial.svg", attention(Variant::serial), 6000},
      {"attention-inter.svg", attention(Variant::inter), 6000},
      {"attention-intra.svg", attention(Variant::intra), 6000},
      {"attention-both.svg", attention(Variant::both), 6000},
      {"hstu-bias.svg", hstu(), 6000},
  };
  std::vector<DocumentPicture> pictures;
  for (const auto& [file, scenario, until] : wanted) {
    const Result<Run> run = run_scenario(scenario, {.trace = true});
    if (!run.ok()) return run.status();
    pictures.push_back({file, timeline_svg(*run, until)});
  }
  const Result<Sweep> stages = sweep({ScenarioKind::gemm,
                                      {{"scheme", "cp_async"}},
                                      {"stages", {"2", "3", "4", "5", "6", "7", "8"}},
                                      {"latency", {"300", "700", "1100", "1500", "1900", "2300", "2700", "3000"}},
                                      Metric::tensor_percent});
  if (!stages.ok()) return stages.status();
  pictures.push_back({"stages-latency.svg", heat_map_svg(*stages)});
  GemmScenario small;
  small.k = 512;
  const Result<Run> shared = run_shared(small, {.sms = 4, .total_bandwidth = 4 * 13.9, .l2_hit = 0}, {.trace = true});
  if (!shared.ok()) return shared.status();
  pictures.push_back({"shared-memory.svg", timeline_svg(*shared, shared->timeline.makespan)});
  std::vector<DocumentPicture> maps = map_pictures();
  pictures.insert(pictures.end(), std::make_move_iterator(maps.begin()), std::make_move_iterator(maps.end()));
  return pictures;
}

}  // namespace warploom::sim
