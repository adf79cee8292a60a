#include "cli/verify_gemm_cases.h"

#include <utility>

#include "cli/gemm_case.h"
#include "gpu/gemm_plan.h"
#include "gpu/reference_device.h"

namespace warploom::cli {
namespace {

using Config = GemmProblemConfig;

/// More tiles than twice the SMs of the largest Hopper GPU.
constexpr std::int64_t many = 2 * 144 + 1;

class Cases {
 public:
  explicit Cases(std::uint32_t dtype) {
    start_.dtype = dtype;
    start_.out_dtype = dtype == WARPLOOM_FLOAT8_E4M3 ? std::uint32_t{WARPLOOM_BFLOAT16} : dtype;
  }

  /// `change` turns the starting problem (65 x 72 x 80, gaps between rows) into the case.
  template <typename Change>
  void add(std::string name, Change change) {
    Config config = start_;
    config.seed = static_cast<unsigned>(cases_.size() + 1);
    change(config);
    cases_.push_back({std::move(name), config});
  }

  const Config& start() const { return start_; }
  std::vector<GemmVerifyCase> take() { return std::move(cases_); }

 private:
  Config start_;
  std::vector<GemmVerifyCase> cases_;
};

/// Bias, silu and C, with factors that leave more bits than a 16-bit type has.
void add_everything(Config& c) {
  c.bias = c.silu = c.c = true;
  c.alpha = 0x1p-9;
  c.beta = 0.5;
}

void add_shapes(Cases& cases) {
  const auto shape = [&cases](const char* name, std::int64_t rows, std::int64_t columns, std::int64_t depth) {
    cases.add(name, [=](Config& c) {
      c.rows = rows;
      c.columns = columns;
      c.depth = depth;
    });
  };
  shape("no rows", 0, 72, 80);
  shape("no columns", 65, 0, 80);
  cases.add("no products", [](Config& c) { c.batch = 0; });
  shape("no depth", 65, 72, 0);
  cases.add("no depth, everything after it", [](Config& c) {
    c.depth = 0;
    add_everything(c);
  });
  shape("one value", 1, 1, 1);
  shape("one less than the tiles", 127, 127, 63);
  shape("one more than the tiles", 129, 129, 129);
  shape("tall", 520, 8, 72);
  shape("wide", 1, 520, 136);
  shape("long sums", 16, 64, 1000);
  shape("long sums, a power of two", 9, 40, 2048);
}

void add_layouts(Cases& cases) {
  cases.add("contiguous", [](Config& c) { c.gaps = false; });
  cases.add("pairs aligned", [](Config& c) { c.pairs_aligned = true; });
  cases.add("pairs aligned, odd columns, everything", [](Config& c) {
    c.pairs_aligned = true;
    c.columns = 71;
    add_everything(c);
  });
  cases.add("batch", [](Config& c) { c.batch = 3; });
  cases.add("batch, everything", [](Config& c) {
    c.batch = 3;
    add_everything(c);
  });
  cases.add("one b for the batch", [](Config& c) {
    c.batch = 3;
    c.one_b = true;
  });
  cases.add("one c for the batch", [](Config& c) {
    c.batch = 3;
    c.one_c = true;
    add_everything(c);
  });
}

void add_ends(Cases& cases) {
  cases.add("alpha 0", [](Config& c) { c.alpha = 0; });
  cases.add("negative alpha and beta", [](Config& c) {
    c.alpha = -0.25;
    c.c = true;
    c.beta = -3;
  });
  cases.add("bias", [](Config& c) { c.bias = true; });
  cases.add("silu", [](Config& c) {
    c.silu = true;
    c.alpha = 0x1p-5;
  });
  cases.add("beta 0, c not read", [](Config& c) { c.c = c.c_of_nan = true; });
  cases.add("the result replaces c", [](Config& c) {
    add_everything(c);
    c.out_is_c = true;
  });
  cases.add("to fp32", [](Config& c) { c.out_dtype = WARPLOOM_FLOAT32; });
  cases.add("to fp32, everything", [](Config& c) {
    c.out_dtype = WARPLOOM_FLOAT32;
    add_everything(c);
  });
  cases.add("to the other 16-bit type", [](Config& c) {
    c.out_dtype = c.out_dtype == WARPLOOM_FLOAT16 ? WARPLOOM_BFLOAT16 : WARPLOOM_FLOAT16;
    add_everything(c);
  });
  if (cases.start().dtype != WARPLOOM_FLOAT8_E4M3) return;
  cases.add("scales", [](Config& c) { c.scale_a = c.scale_b = true; });
  cases.add("scale of b, everything", [](Config& c) {
    c.scale_b = true;
    add_everything(c);
    c.alpha = 0x1p-5;
  });
}

std::string tile_name(const GemmConfig& tile) {
  std::string name = "tile " + std::to_string(tile.tile_rows) + "x" + std::to_string(tile.tile_columns);
  if (tile.few_rows) name += " few rows";
  if (tile.ping_pong) name += " ping-pong";
  if (tile.multicast > 1) name += (tile.shares_a ? " multicast of A " : " multicast ") + std::to_string(tile.multicast);
  if (tile.split > 1) name += " split " + std::to_string(tile.split);
  return name;
}

/// The tiles of the library's table that serve a type.
std::vector<GemmConfig> tiles_of(std::uint32_t dtype) {
  const Result<gpu::DeviceInfo> hopper = gpu::reference_device({9, 0, true});
  if (!hopper.ok()) return {};
  const GemmCase any{.rows = 64, .columns = 64, .depth = 1024, .dtype = dtype};
  std::vector<GemmConfig> tiles;
  for (const gpu::GemmCandidate& each : gpu::gemm_candidates(describe_case(any), *hopper)) tiles.push_back(each.config);
  return tiles;
}

void add_tile(Cases& cases, const GemmConfig& tile) {
  const std::string name = tile_name(tile);
  const auto tails = [&tile](Config& c, std::int64_t more_columns) {
    c.tile = tile;
    c.rows = tile.tile_rows * tile.multicast + 1;
    c.columns = tile.tile_columns + more_columns;
    c.depth = 2 * gemm_depth(tile) + 8;
  };
  cases.add(name + ", tails", [&](Config& c) { tails(c, 8); });
  // Two sets of accumulators leave no registers for stores of their own.
  if (!tile.ping_pong) {
    cases.add(name + ", odd columns, everything", [&](Config& c) {
      tails(c, 1);
      add_everything(c);
    });
  }
  // A cluster that shares out K has one tile.
  if (tile.split == 1) {
    cases.add(name + ", many tiles a CTA, everything", [&](Config& c) {
      c.tile = tile;
      c.rows = 9;
      c.columns = 24;
      c.batch = many / tile.multicast;
      add_everything(c);
    });
  }
}

}  // namespace

std::vector<GemmVerifyCase> gemm_verify_cases(std::uint32_t dtype) {
  Cases cases(dtype);
  add_shapes(cases);
  add_layouts(cases);
  add_ends(cases);
  for (const GemmConfig& tile : tiles_of(dtype)) add_tile(cases, tile);
  return cases.take();
}

}  // namespace warploom::cli
