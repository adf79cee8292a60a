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

constexpr const char* kOneWidth = "the model's values are as wide as its keys";
constexpr const char* kNoItems = "the model is one work item without an end: no epilogue, no mask";

double work(int dim) {
  return static_cast<double>(dim);
}

/// The roles of a kernel whose consumers come first, and what all of them draw.
Subject attention_subject(int consumers, bool softmax, const std::vector<std::string>& producers) {
  Subject subject;
  subject.legend = {{'L', "load"}, {'i', "issue"}, {'E', "epilogue"}, {'x', softmax ? "softmax" : "silu"}};
  for (int c = 0; c < consumers; ++c) {
    subject.roles.push_back({message("warpgroup ", c), kAttentionProducts[c]});
    subject.legend.push_back({kAttentionProducts[c], message("products of warpgroup ", c)});
  }
  for (const std::string& producer : producers) subject.roles.push_back({producer});
  subject.schedules = {sim::Variant::inter, sim::Variant::intra, sim::Variant::both};
  return subject;
}

/// The simulator's backward pass, or a kernel's part of it, two warpgroups in turns.
sim::AttentionScenario backward_model(sim::Pass pass, const sim::Machine& machine, bool softmax, int columns,
                                      int head_dim) {
  sim::AttentionScenario model;
  model.machine = machine;
  model.pass = pass;
  model.variant = sim::Variant::inter;
  model.step = softmax ? sim::Step::softmax : sim::Step::hstu;
  model.rows = kWarpgroupRows;
  model.keys = columns;
  model.head_dim = head_dim;
  return model;
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
  subject.products = {{0, {{"", 1}}}};
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

Subject subject_of(sim::Scheme scheme, int stages, int tile, int step, const sim::Machine& machine,
                   std::int64_t steps) {
  Subject subject;
  if (scheme == sim::Scheme::specialized) subject.roles.push_back({"producer"});
  for (int c = 0; c < 2; ++c) subject.roles.push_back({message("warpgroup ", c), kGemmProducts[0]});
  subject.rings = {{"", stages}};
  subject.products = {{0, {{"", 1}}}};
  subject.steps_of_tile = steps;
  subject.legend = {{'L', "load"}, {'i', "issue"}, {'E', "epilogue"}, {'M', "products"}};
  sim::GemmScenario model;
  model.machine = machine;
  model.scheme = scheme;
  model.k = steps * step;
  model.stages = stages;
  model.tile_m = model.tile_n = tile;
  model.tile_k = step;
  subject.model = model;
  subject.differences = {"warpgroups that share a tile are one in the model"};
  return subject;
}

Subject subject_of(const HopperForwardConfig& config, const sim::Machine& machine) {
  const bool softmax = config.score == ScoreKind::softmax;
  Subject subject = attention_subject(config.consumers, softmax, {"scheduler", "loader"});
  subject.rings = {
      {"K", config.stages}, {"V", config.stages}, {"Q", config.query_stages}, {"item", kItemSlots, /*loaded=*/false}};
  subject.products = {{ForwardMarks::keys, {{"S", work(config.head_dim)}}},
                      {ForwardMarks::values, {{"PV", work(config.value_dim)}}}};
  sim::AttentionScenario model;
  model.machine = machine;
  model.variant = config.consumers > 1 ? sim::Variant::both : sim::Variant::intra;
  model.step = softmax ? sim::Step::softmax : sim::Step::hstu;
  model.rows = kWarpgroupRows;
  model.keys = config.key_columns;
  model.head_dim = config.head_dim;
  model.kv_stages = config.stages > 1 ? config.stages : 0;
  subject.model = model;
  if (config.consumers > 2)
    subject.differences.push_back(message("the model has two warpgroups, the kernel ", config.consumers));
  if (config.value_dim != config.head_dim) subject.differences.push_back(kOneWidth);
  if (config.consumers > 1 && config.turns) {
    subject.differences.push_back(
        "the kernel has turns and overlap; the model's `both` has no turns, `inter` no overlap");
  }
  subject.differences.push_back(kNoItems);
  return subject;
}

Subject subject_of(const HopperBackwardConfig& config, const sim::Machine& machine) {
  Subject subject = attention_subject(config.consumers, config.softmax, {"scheduler", "loader"});
  subject.legend.insert(subject.legend.end(), {{'h', "dS handed over"}, {'Q', "dQ added"}});
  subject.rings = {
      {"Q dO", config.stages}, {"K V", 1}, {"item", kBackwardItemSlots, /*loaded=*/false}, {"dS", 2, /*loaded=*/false}};
  const double dim = work(config.head_dim), value_dim = work(config.value_dim);
  // As attention/hopper_backward_steps.h has them.
  const bool apart = commits_gradients_apart(config);
  const ProductGroup::Part s{"S", dim}, dp{"dP", value_dim}, dv{"dV", value_dim}, dk{"dK", dim}, dq{"dQ", dim};
  subject.products.resize(5);
  subject.products[BackwardMarks::score_products] = {BackwardMarks::tiles, {s}};
  subject.products[BackwardMarks::slope_product] = {BackwardMarks::tiles, {dp}};
  subject.products[BackwardMarks::gradient_products] = {BackwardMarks::tiles, {dv}};
  subject.products[BackwardMarks::key_product] = {BackwardMarks::tiles, {dk}};
  subject.products[BackwardMarks::query_product] = {BackwardMarks::scores, {}};
  if (config.accumulate_dq) subject.products[BackwardMarks::query_product].parts = {dq};
  if (!apart || !config.splits_scores) subject.products[BackwardMarks::score_products].parts.push_back(dp);
  if (!apart) subject.products[BackwardMarks::gradient_products].parts.push_back(dk);
  // A tile of 128 queries goes in halves, each with scores of its own.
  const int halves = config.query_rows == 128 ? 2 : 1;
  subject.model = backward_model(config.accumulate_dq ? sim::Pass::backward : sim::Pass::backward_keys, machine,
                                 config.softmax, config.query_rows / halves, config.head_dim);
  if (config.value_dim != config.head_dim) subject.differences.push_back(kOneWidth);
  if (config.accumulate_dq)
    subject.differences.push_back("here dQ comes one tile late, and after dS has gone through shared memory");
  subject.differences.push_back(kNoItems);
  return subject;
}

Subject subject_of(const HopperBackwardPairConfig& config, const sim::Machine& machine) {
  using Marks = BackwardPairMarks;
  Subject subject =
      attention_subject(/*consumers=*/2, config.softmax, {"scheduler", "loader of K, Q", "loader of V, dO"});
  subject.legend.insert(subject.legend.end(), {{'h', "dS handed over"}, {'Q', "dQ added"}});
  subject.rings.resize(Marks::other_slopes + 1);
  subject.rings[Marks::queries] = {"Q", config.stages};
  subject.rings[Marks::douts] = {"dO", config.dout_stages};
  subject.rings[Marks::keys] = {"K", 1};
  subject.rings[Marks::values] = {"V", 1};
  subject.rings[Marks::items] = {"item", HopperBackwardPairSharedMap::item_slots, /*loaded=*/false};
  subject.rings[Marks::own_slopes] = {"dS", config.slope_stages, /*loaded=*/false};
  subject.rings[Marks::other_slopes] = {"other dS", config.slope_stages, /*loaded=*/false};
  const double dim = work(config.head_dim), value_dim = work(config.value_dim);
  subject.products.resize(5);
  subject.products[Marks::score_product] = {Marks::queries, {{"S", dim}}};
  subject.products[Marks::slope_product] = {Marks::douts, {{"dP", value_dim}}};
  subject.products[Marks::value_product] = {Marks::douts, {{"dV", value_dim}}};
  subject.products[Marks::key_product] = {Marks::queries, {{"dK", dim}}};
  subject.products[Marks::query_product] = {Marks::own_slopes, {{"dQ", dim}}};
  subject.model = backward_model(sim::Pass::backward, machine, config.softmax, kPairQueryRows, config.head_dim);
  if (config.value_dim != config.head_dim) subject.differences.push_back(kOneWidth);
  subject.differences.push_back(
      "here one consumer has S, dP and dV of every tile, the other dK and dQ; the model's two share all of them");
  subject.differences.push_back(kNoItems);
  return subject;
}

Subject subject_of(const HopperBackwardKeysConfig& config, const sim::Machine& machine) {
  using Marks = BackwardKeysMarks;
  Subject subject =
      attention_subject(/*consumers=*/2, config.softmax, {"scheduler", "loader of K, Q", "loader of V, dO"});
  subject.legend.emplace_back('h', "P or dS handed over");
  subject.rings.resize(Marks::handoffs + 2);
  subject.rings[Marks::queries] = {"Q", config.stages};
  subject.rings[Marks::douts] = {"dO", config.stages};
  subject.rings[Marks::keys] = {"K", 1};
  subject.rings[Marks::values] = {"V", 1};
  subject.rings[Marks::items] = {"item", HopperBackwardKeysSharedMap::item_slots, /*loaded=*/false};
  subject.rings[Marks::handoffs] = {"dS", 1, /*loaded=*/false};
  subject.rings[Marks::handoffs + 1] = {"P", 1, /*loaded=*/false};
  const double dim = work(config.head_dim), value_dim = work(config.value_dim);
  subject.products.resize(3);
  subject.products[Marks::score_products] = {Marks::queries, {{"S", dim}, {"dP", value_dim}}};
  subject.products[Marks::value_product] = {Marks::douts, {{"dV", value_dim}}};
  subject.products[Marks::key_product] = {Marks::queries, {{"dK", dim}}};
  subject.model = backward_model(sim::Pass::backward_keys, machine, config.softmax, config.query_rows, config.head_dim);
  if (config.value_dim != config.head_dim) subject.differences.push_back(kOneWidth);
  subject.differences.push_back("here a consumer has one product with its own tile and one with the other's");
  subject.differences.push_back(kNoItems);
  return subject;
}

Subject subject_of(const HopperBackwardDqConfig& config, const sim::Machine& machine) {
  using Marks = BackwardDqMarks;
  Subject subject =
      attention_subject(config.consumers, config.softmax, {"scheduler", "loader of K, V", "loader of Q, dO"});
  subject.rings = {
      {"K", config.stages}, {"V", config.value_stages}, {"item", HopperBackwardDqSharedMap::item_slots, false}};
  for (int c = 0; c < config.consumers; ++c) subject.rings.push_back({message("Q dO of ", c), 1});
  const double dim = work(config.head_dim), value_dim = work(config.value_dim);
  subject.products.resize(3);
  subject.products[Marks::score_product] = {Marks::keys, {{"S", dim}}};
  subject.products[Marks::slope_product] = {Marks::values, {{"dP", value_dim}}};
  subject.products[Marks::query_product] = {Marks::keys, {{"dQ", dim}}};
  subject.model = backward_model(sim::Pass::backward_dq, machine, config.softmax, config.key_columns, config.head_dim);
  if (config.consumers > 2)
    subject.differences.push_back(message("the model has two warpgroups, the kernel ", config.consumers));
  if (config.value_dim != config.head_dim) subject.differences.push_back(kOneWidth);
  subject.differences.push_back(kNoItems);
  return subject;
}

Status check_marks(const Subject& subject, const CtaTrace& cta) {
  for (const Track& track : cta.tracks) {
    for (const Sample& sample : track.samples) {
      const bool is_product = sample.mark == Mark::product || sample.mark == Mark::wait_product;
      const std::size_t known = is_product ? subject.products.size() : subject.rings.size();
      if (static_cast<std::size_t>(track.strip) >= subject.roles.size() ||
          static_cast<std::size_t>(sample.ring) >= known) {
        return Status::runtime_error(message("the trace's strip ", track.strip, " of CTA ", cta.cta, " has mark ",
                                             static_cast<int>(sample.mark), " with number ", sample.ring, " of ", known,
                                             "; the kernel and this library are not of one version"));
      }
    }
  }
  return {};
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
