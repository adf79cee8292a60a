#include "gpu/split_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "gpu/device_call.h"
#include "gpu/mma_forward_plan.h"
#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom::gpu {
namespace {

/// One row of a tile table, for heads up to max_dim wide.
struct Tile {
  int max_dim;
  int query_rows, key_columns, stages, warps, key_warps, min_blocks;
};

/// Up to 16 rows: the warps divide the columns, and several tiles are on their way, as memory is what such calls wait
/// for. The first row whose min_blocks CTAs fit an SM is taken; the last one of each max_dim serves every device from
/// sm_80 on (99 KiB a block). docs/performance-log.md has the measurements.
constexpr int kFewRows = 16;
constexpr std::array kFewRowsTiles = {
    Tile{64, 16, 64, 4, 4, 4, 3},  Tile{64, 16, 64, 3, 4, 4, 1},  Tile{128, 16, 64, 3, 4, 4, 2},
    Tile{128, 16, 64, 2, 4, 4, 1}, Tile{192, 16, 64, 3, 4, 4, 1}, Tile{192, 16, 32, 2, 2, 2, 1},
    Tile{256, 16, 64, 3, 4, 4, 1}, Tile{256, 16, 64, 2, 4, 4, 1}, Tile{256, 16, 32, 2, 2, 2, 1},
};
/// More rows: 16 a warp.
constexpr std::array kManyRowsTiles = {
    Tile{64, 64, 64, 3, 4, 1, 3},  Tile{64, 64, 64, 2, 4, 1, 2},  Tile{128, 64, 64, 2, 4, 1, 2},
    Tile{128, 64, 64, 2, 4, 1, 1}, Tile{192, 64, 32, 2, 4, 1, 2}, Tile{192, 64, 32, 2, 4, 1, 1},
    Tile{256, 64, 32, 2, 4, 1, 2}, Tile{256, 32, 32, 2, 2, 1, 1},
};
/// With a bias, whose tile takes shared memory and registers, and whose provider knows rows of one head and warps that
/// hold all columns.
constexpr std::array kBiasTiles = {
    Tile{64, 64, 64, 2, 4, 1, 2},  Tile{64, 64, 32, 2, 4, 1, 1},  Tile{128, 64, 32, 2, 4, 1, 2},
    Tile{128, 64, 32, 2, 4, 1, 1}, Tile{256, 64, 32, 2, 4, 1, 1}, Tile{256, 32, 32, 2, 2, 1, 1},
};

std::span<const Tile> tiles_of(const AttentionForwardConfig& asked, bool few_rows) {
  if (asked.bias != BiasKind::none) return kBiasTiles;
  return few_rows ? std::span<const Tile>(kFewRowsTiles) : std::span<const Tile>(kManyRowsTiles);
}

/// The driver keeps this much shared memory of every CTA for itself (CUDA C++ Programming Guide, compute capability 8.x
/// on).
constexpr int kReservedSharedBytes = 1024;

AttentionForwardConfig config_of(const Tile& tile, AttentionForwardConfig asked) {
  asked.query_rows = tile.query_rows;
  asked.key_columns = tile.key_columns;
  asked.stages = tile.stages;
  asked.warps = tile.warps;
  asked.key_warps = tile.key_warps;
  asked.min_blocks = tile.min_blocks;
  return asked;
}

/// The table's rows for the dimensions of `asked` that fit the device, the preferred one first.
std::vector<AttentionForwardConfig> configs_of(const AttentionForwardConfig& asked, bool few_rows,
                                               const DeviceInfo& device) {
  const int wider = std::max(asked.head_dim, asked.value_dim);
  std::vector<AttentionForwardConfig> result;
  int max_dim = 0;
  for (const Tile& tile : tiles_of(asked, few_rows)) {
    if (wider > tile.max_dim || (max_dim != 0 && tile.max_dim != max_dim)) continue;
    max_dim = tile.max_dim;
    const AttentionForwardConfig config = config_of(tile, asked);
    const int bytes = split_shared_map(config).bytes;
    if (bytes <= device.shared_bytes_per_block &&
        config.min_blocks * (bytes + kReservedSharedBytes) <= device.shared_bytes_per_sm) {
      result.push_back(config);
    }
  }
  return result;
}

KernelRequest split_request(const ConfigKey& key, const Architecture& architecture) {
  return forward_request(key, architecture, "attention/attention_forward_split.cu", "attention_forward_split");
}

KernelVariant split_variant(const ConfigKey& key) {
  const bool few_rows = mma_forward_config(key).key_warps > 1;
  return forward_variant(kSplitForward, key, few_rows ? "forward split, few rows," : "forward split");
}

std::vector<KernelVariant> split_variants(const DeviceInfo& device, bool whole_table) {
  std::vector<KernelVariant> result;
  for (int dim = 8; dim <= 256; dim += 8) {
    // At the ends of the table's rows registers are fewest.
    if (whole_table && dim != 8 && dim % 64 != 56 && dim % 64 != 0) continue;
    const bool common = dim == 64 || dim == 128 || dim == 256;
    for (const AttentionForwardConfig& asked : forward_configs_asked(dim, common)) {
      for (const bool few_rows : {true, false}) {
        if (few_rows && asked.bias != BiasKind::none) continue;
        for (const AttentionForwardConfig& config : configs_of(asked, few_rows, device)) {
          result.push_back(split_variant(key_of(config)));
          if (!whole_table) break;
        }
      }
    }
  }
  return result;
}

CombineConfig combine_config(const ConfigKey& key) {
  return {key[0] != 0, key[1], key[2] != 0};
}

KernelRequest combine_request(const ConfigKey& key, const Architecture& architecture) {
  const CombineConfig c = combine_config(key);
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  KernelRequest request;
  request.entry_file = "attention/attention_combine.cu";
  request.config_text = message(
      "#include \"attention/split_config.h\"\nnamespace warploom {\ninline constexpr CombineConfig kConfig = {"
      ".softmax = ",
      truth(c.softmax), ", .value_dim = ", c.value_dim, ", .bfloat16 = ", truth(c.bfloat16),
      "};\n}  // namespace warploom\n");
  request.kernel_name = "attention_combine";
  request.architecture = architecture;
  return request;
}

KernelVariant combine_variant(const ConfigKey& key) {
  const CombineConfig c = combine_config(key);
  return {&kCombine,
          key,
          message(c.softmax ? "softmax" : "hstu", " combine Dv", c.value_dim, c.bfloat16 ? " bf16" : " fp16"),
          c.value_dim,
          c.bfloat16,
          false};
}

std::vector<KernelVariant> combine_variants(const DeviceInfo&, bool) {
  std::vector<KernelVariant> result;
  for (int dim = 8; dim <= 256; dim += 8) {
    for (const int bits : {0, 1, 2, 3}) result.push_back(combine_variant({bits & 1, dim, bits >> 1}));
  }
  return result;
}

/// Query heads that are rows of one tile: all that share a key head, unless the bias or the mask tells heads apart.
int packed_heads(const warploom_attention& call) {
  if (call.bias.kind != WARPLOOM_NO_BIAS || call.interval_heads > 1) return 1;
  return static_cast<int>(call.heads / call.key_heads);
}

int longest_keys(const warploom_attention& call) {
  const bool known = is_dense(call) || call.max_seqlen_k != WARPLOOM_FROM_CU_SEQLENS;
  return static_cast<int>(std::clamp<int64_t>(known ? call.max_seqlen_k : call.total_k, 0, geometry::kUnbounded));
}

std::size_t aligned(long long bytes) {
  return static_cast<std::size_t>((bytes + 255) / 256 * 256);
}

bool is_split_launch(const PlannedLaunch& launch) {
  return launch.family == &kSplitForward || launch.family == &kCombine;
}

long long rows_of_parts(const SplitCall& params, const warploom_attention& call) {
  return params.slots.before(call.batch, call.total_q, call.total_k, params.packed_heads) * params.call.schedule.heads;
}

void bind(GpuPlan& plan, DevicePointer scratch) {
  if (plan.bind_first != nullptr) plan.bind_first(plan, scratch);
  // Terms, then parts; their sizes are what is left of the memory, a term for every value_dim floats.
  for (int n = 0; n < plan.launch_count; ++n) {
    PlannedLaunch& launch = plan.launches[static_cast<std::size_t>(n)];
    if (!is_split_launch(launch)) continue;
    SplitCall& params = launch.params_as<SplitCall>();
    const auto offset = [&](const auto* place) { return scratch + reinterpret_cast<DevicePointer>(place); };
    params.terms = reinterpret_cast<PartTerms*>(offset(params.terms));
    params.parts = reinterpret_cast<float*>(offset(params.parts));
  }
}

void describe_plan(const GpuPlan& plan, const warploom_attention& call, const DeviceInfo& device,
                   nlohmann::json& json) {
  if (plan.describe_first != nullptr) plan.describe_first(plan, call, device, json);
  nlohmann::json launches = nlohmann::json::array();
  const int keys = longest_keys(call);
  for (int n = 0; n < plan.launch_count; ++n) {
    const PlannedLaunch& launch = plan.launches[static_cast<std::size_t>(n)];
    if (launch.family != &kSplitForward) continue;
    const AttentionForwardConfig c = mma_forward_config(launch.config);
    const SplitCall& p = launch.params_as<SplitCall>();
    const Chunks chunks = chunks_of(p.fewest_rows, p.call.schedule.heads, keys);
    launches.push_back(
        {{"from_rows", p.fewest_rows},
         {"query_rows", c.query_rows},
         {"key_columns", c.key_columns},
         {"stages", c.stages},
         {"warps", c.warps},
         {"key_warps", c.key_warps},
         {"min_blocks", c.min_blocks},
         {"row_tiles", p.row_tiles},
         {"chunk_keys", chunks.keys},
         {"chunks", chunks.count},
         {"splits", p.splits},
         {"why", message("up to ", chunks.count, " chunks of ", chunks.keys, " keys for each of ",
                         launch.ctas / p.splits, " row tiles, shared by ", p.splits, " CTA(s) each: the ", launch.ctas,
                         " CTAs run ", device.sm_count * c.min_blocks, " at a time in the fewest and fullest waves")}});
  }
  const SplitCall& p = plan.launches[static_cast<std::size_t>(plan.launch_count - 1)].params_as<SplitCall>();
  json["split"] = {
      {"queries_up_to", kShortQueries},
      {"packed_heads", p.packed_heads},
      {"parts_bytes",
       rows_of_parts(p, call) *
           static_cast<long long>(sizeof(PartTerms) + sizeof(float) * static_cast<std::size_t>(call.value_dim))},
      {"launches", launches},
      {"why",
       message("queries of at most ", kShortQueries,
               " rows: K and V are read once for many CTAs, and parts of O, one a row and chunk, are added up in "
               "the order of the chunks, which follow from a sequence's own lengths")}};
  if (plan.describe_first == nullptr) {
    json["limiter"] = {{"name", "memory"}, {"why", "each byte of K and V serves the rows of one tile only"}};
    json["why"] = json["split"]["why"];
  }
}

}  // namespace

const KernelFamily kSplitForward = {"attention_forward_split (mma.sync)",
                                    "kernels/attention/attention_forward_split.cu", split_request, split_variants,
                                    split_variant};
const KernelFamily kCombine = {"attention_combine", "kernels/attention/attention_combine.cu", combine_request,
                               combine_variants, combine_variant};

bool splits_short_queries(const warploom_attention& call) {
  // A user's score function is left to the kernel that takes the tiles whole.
  if (call.pass != WARPLOOM_FORWARD || call.total_q == 0 || has_score_function(call)) return false;
  if (is_dense(call)) return call.max_seqlen_q <= kShortQueries && call.max_seqlen_k > kFewestChunkKeys;
  return call.cu_seqlens_k != nullptr && call.cu_seqlens_k != call.cu_seqlens_q;
}

bool has_only_short_queries(const warploom_attention& call) {
  return effective_max_seqlen_q(call) <= kShortQueries;
}

Share share_chunks(long long tiles, int chunks, int tiles_of_chunk, int at_once, bool uneven) {
  constexpr int kFillingTiles = 2;  // of a CTA's ring, in times of a tile
  constexpr int kUnevenWaves = 4;
  Share best{1, std::max(1, chunks), tiles, at_once};
  long long shortest = std::numeric_limits<long long>::max();
  const long long most_each =
      uneven ? std::max<long long>(1, tiles * chunks / (int64_t{kUnevenWaves} * at_once)) : chunks;
  for (int each = static_cast<int>(std::min<long long>(most_each, chunks)); each > 0; --each) {
    const int splits = (chunks + each - 1) / each;
    const long long waves = (tiles * splits + at_once - 1) / at_once;
    const long long time = waves * (int64_t{each} * tiles_of_chunk + kFillingTiles);
    if (time >= shortest) continue;
    shortest = time;
    best = {splits, each, tiles * splits, at_once};
  }
  return best;
}

Status add_split_launches(const warploom_attention& call, const DeviceInfo& device, GpuPlan& plan) {
  const bool alone = plan.launch_count == 0, dense = is_dense(call);
  const AttentionForwardConfig asked = forward_config_asked(call);
  const int64_t longest_q = std::max<int64_t>(1, std::min<int64_t>(kShortQueries, effective_max_seqlen_q(call)));
  const int longest_k = longest_keys(call);

  SplitCall common;
  fill_device_call(call, common.call);
  common.packed_heads = packed_heads(call);
  common.most_queries = alone ? std::numeric_limits<int>::max() : kShortQueries;
  common.queries_at_once = static_cast<int>(longest_q);
  common.call.schedule = schedule_of(call, 1, 1, 1, device);
  geometry::Schedule& schedule = common.call.schedule;
  schedule.heads = static_cast<int>(call.heads / common.packed_heads);
  schedule.sequences = static_cast<int>(call.batch);  // the rows that belong to nobody are for the last kernel
  schedule.pairs_in_group = std::max(1, schedule.sequences * schedule.heads);

  common.most_split_rows = longest_q * common.packed_heads;
  common.slots.queries_each = alone ? 0 : kShortQueries;
  common.slots.row_tiles = static_cast<int>((common.most_split_rows + kRowTile - 1) / kRowTile);
  const long long by_rows = rows_of_parts(common, call);
  common.slots.by_keys = true;
  if (rows_of_parts(common, call) > by_rows) common.slots.by_keys = false;
  const long long rows = rows_of_parts(common, call);
  // Places in the scratch memory; they become addresses when there is some.
  const std::size_t terms = aligned(static_cast<long long>(plan.scratch_bytes));
  const std::size_t parts = terms + aligned(rows * static_cast<long long>(sizeof(PartTerms)));
  common.terms = reinterpret_cast<PartTerms*>(terms);
  common.parts = reinterpret_cast<float*>(parts);
  plan.scratch_bytes = parts + aligned(rows * call.value_dim * static_cast<long long>(sizeof(float)));
  plan.scratch_left_cleared = false;
  plan.bind_first = plan.bind_scratch;
  plan.bind_scratch = bind;
  plan.describe_first = plan.describe;
  plan.describe = describe_plan;

  // Sequences with few rows and those with more, unless the call has only one kind of them.
  const long long most = common.most_split_rows;
  const long long fewest = dense ? most : common.packed_heads;
  const bool one_kind = asked.bias != BiasKind::none || most <= kFewRows || fewest > kFewRows;
  for (const bool few_rows : {true, false}) {
    const bool wanted = one_kind ? few_rows == (asked.bias == BiasKind::none && most <= kFewRows) : true;
    if (!wanted || schedule.sequences == 0) continue;
    const std::vector<AttentionForwardConfig> configs = configs_of(asked, few_rows, device);
    if (configs.empty()) {
      return Status::runtime_error(message(device.name, " gives a block ", device.shared_bytes_per_block,
                                           " bytes of shared memory, too little for head dimensions ", asked.head_dim,
                                           " and ", asked.value_dim, "; sm_80 and newer GPUs have enough"));
    }
    const AttentionForwardConfig& config = configs.front();
    PlannedLaunch& launch = plan.add_launch(kSplitForward, key_of(config));
    launch.threads = config.warps * 32;
    launch.shared_bytes = split_shared_map(config).bytes;
    SplitCall& params = launch.start_params<SplitCall>();
    params = common;
    params.fewest_rows = few_rows || one_kind ? fewest : kFewRows + 1;
    params.most_rows = few_rows && !one_kind ? kFewRows : std::numeric_limits<long long>::max();
    const long long most_here = few_rows && !one_kind ? kFewRows : most;
    params.row_tiles = static_cast<int>((most_here + config.query_rows - 1) / config.query_rows);
    const Chunks chunks = chunks_of(params.fewest_rows, schedule.heads, std::max(1, longest_k));
    const long long tiles = int64_t{schedule.sequences} * schedule.heads * params.row_tiles;
    const Share share = share_chunks(tiles, chunks.count, chunks.keys / config.key_columns,
                                     device.sm_count * config.min_blocks, !dense);
    params.splits = share.splits;
    params.call.schedule.query_tiles = params.row_tiles * params.splits;
    launch.ctas = share.ctas;
    if (Status status = check_grid(launch.ctas, config.query_rows); !status.ok()) return status;
  }

  PlannedLaunch& combine =
      plan.add_launch(kCombine, {asked.score == ScoreKind::softmax, asked.value_dim, asked.bfloat16});
  combine.threads = kCombineThreads;
  combine.shared_bytes = 0;
  combine.overlaps_previous = device.major >= 9 && schedule.sequences > 0;
  SplitCall& params = combine.start_params<SplitCall>();
  params = common;
  params.combined_rows = (call.batch + (alone && !dense ? 1 : 0)) * longest_q * call.heads;
  // A warp a row fills the GPU where there are enough of them; else all of a CTA's threads help with one.
  const bool many_rows = params.combined_rows >= int64_t{device.sm_count} * kCombineThreads / 32;
  params.rows_of_cta = many_rows ? kCombineThreads / 32 : 1;
  combine.ctas = (params.combined_rows + params.rows_of_cta - 1) / params.rows_of_cta;
  return check_grid(params.combined_rows, 1);
}

}  // namespace warploom::gpu
