#include "trace/subject.h"

#include <algorithm>

#include "problem/message.h"

namespace warploom::trace {
namespace {

// As in sim/gemm.cpp and sim/attention.cpp, and on: the simulator has two warpgroups.
constexpr char kGemmProducts[] = {'M', 'm'};
constexpr char kAttentionProducts[] = {'A', 'B', 'C', 'F'};

std::int64_t count(const CtaTrace& cta, int strip, Mark mark, int ring) {
  for (const Track& track : cta.tracks) {
    if (track.strip != strip) continue;
    return std::count_if(track.samples.begin(), track.samples.end(),
                         [&](const Sample& sample) { return sample.mark == mark && sample.ring == ring; });
  }
  return 0;
}

}  // namespace

Subject subject_of(const GemmConfig& config, const sim::Machine& machine, std::int64_t steps) {
  Subject subject;
  subject.roles.push_back({"producer"});
  for (int c = 0; c < config.consumers; ++c) {
    // Consumers that share a tile do one product together.
    const char tag = config.ping_pong ? kGemmProducts[c] : kGemmProducts[0];
    subject.roles.push_back({message("consumer ", c), tag});
  }
  subject.roles.push_back({"watcher", ' ', /*watches=*/true});
  subject.rings = {{"", config.stages}};
  subject.steps_of_tile = sim::ceil_div(std::max<std::int64_t>(1, steps), config.split);
  subject.legend = {{'L', "load"}, {'i', "issue"}, {'E', "epilogue"}};
  if (config.ping_pong) {
    subject.legend.insert(subject.legend.end(), {{'M', "products of consumer 0"}, {'m', "products of consumer 1"}});
  } else {
    subject.legend.push_back({'M', "products"});
  }
  sim::GemmScenario model;
  model.machine = machine;
  model.scheme = sim::Scheme::specialized;
  model.k = subject.steps_of_tile * gemm_depth(config);
  model.consumers = config.ping_pong ? config.consumers : 1;
  model.stages = config.stages;
  model.tile_m = config.tile_rows;
  model.tile_n = config.tile_columns;
  model.tile_k = gemm_depth(config);
  subject.model = model;
  if (!config.ping_pong && config.consumers > 1)
    subject.differences.push_back("consumers that share a tile are one in the model");
  if (config.multicast > 1)
    subject.differences.push_back(message("in the model a CTA loads all of B; here ", config.multicast, " share it"));
  if (config.split > 1) subject.differences.push_back("the model knows no sum over a cluster");
  if (!gemm_promotes(config)) {
    subject.differences.push_back(
        "in the model a product is waited for before the next is issued; here two are under way");
  } else {
    subject.differences.push_back("the model multiplies 16-bit values; 8-bit products take half as long");
  }
  return subject;
}

Subject subject_of(const HopperForwardConfig& config, const sim::Machine& machine) {
  Subject subject;
  subject.legend = {
      {'L', "load"}, {'i', "issue"}, {'E', "epilogue"}, {'x', config.score == ScoreKind::softmax ? "softmax" : "silu"}};
  for (int c = 0; c < config.consumers; ++c) {
    subject.roles.push_back({message("warpgroup ", c), kAttentionProducts[c]});
    subject.legend.push_back({kAttentionProducts[c], message("products of warpgroup ", c)});
  }
  subject.roles.push_back({"scheduler"});
  subject.roles.push_back({"loader"});
  subject.rings = {
      {"K", config.stages}, {"V", config.stages}, {"Q", config.query_stages}, {"item", kItemSlots, /*loaded=*/false}};
  sim::AttentionScenario model;
  model.machine = machine;
  model.variant = config.consumers > 1 ? sim::Variant::both : sim::Variant::intra;
  model.step = config.score == ScoreKind::softmax ? sim::Step::softmax : sim::Step::hstu;
  model.rows = kWarpgroupRows;
  model.keys = config.key_columns;
  model.head_dim = config.head_dim;
  model.kv_stages = config.stages > 1 ? config.stages : 0;
  subject.model = model;
  if (config.consumers > 2)
    subject.differences.push_back(message("the model has two warpgroups, the kernel ", config.consumers));
  if (config.value_dim != config.head_dim) subject.differences.push_back("the model's values are as wide as its keys");
  subject.differences.push_back("the model is one work item without an end: no epilogue, no mask");
  return subject;
}

sim::Scenario fit_model(const Subject& subject, const CtaTrace& cta) {
  sim::Scenario scenario = subject.model;
  if (auto* gemm = std::get_if<sim::GemmScenario>(&scenario)) {
    std::int64_t tiles = 0;
    for (int consumer = 0; consumer < static_cast<int>(gemm->consumers); ++consumer) {
      tiles += count(cta, 1 + consumer, Mark::epilogue, 0);
    }
    gemm->tiles = std::max<std::int64_t>(1, tiles);
  } else {
    auto& attention = std::get<sim::AttentionScenario>(scenario);
    attention.blocks = 0;
    for (int w = 0; w < static_cast<int>(sim::warpgroups(attention.variant)); ++w) {
      attention.blocks += count(cta, w, Mark::product, 0);
    }
    attention.blocks = std::max<std::int64_t>(1, attention.blocks);
  }
  return scenario;
}

}  // namespace warploom::trace
