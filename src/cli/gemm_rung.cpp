#include "cli/gemm_rung.h"

#include <vector>

#include "gpu/tensor_map.h"

namespace warploom::cli {
namespace {

const std::vector<std::string> rung_fields = {"stages", "warpgroups"};
/// The product's order of tiles: rows of them that CTAs work on side by side.
constexpr int kBandTiles = 16;

}  // namespace

gemm_ladder::Rung sizes_of(const Rung& rung) {
  return {rung.row.at(rung_fields[0]).get<int>(), rung.row.at(rung_fields[1]).get<int>()};
}

gpu::KernelRequest gemm_rung_request(const Rung& rung, const gpu::Architecture& architecture, trace::Level level) {
  gpu::KernelRequest request = rung_request("gemm_ladder", rung, rung_fields, "gemm", architecture);
  if (level != trace::Level::off) {
    const std::size_t end = request.config_text.find("};");
    request.config_text.insert(end, ", .trace = trace::Level{" + std::to_string(static_cast<int>(level)) + "}");
  }
  return request;
}

int rung_tiles(std::int64_t length) {
  return static_cast<int>((length + gemm_ladder::kTile - 1) / gemm_ladder::kTile);
}

Status fill_call(const gpu::Driver& driver, const warploom_gemm& product, gemm_ladder::Call& call) {
  const auto encode = [&](const char* name, const warploom_matrix& matrix, std::int64_t rows, ptx::TensorMap& map) {
    gpu::TensorMapShape shape;
    shape.element = gpu::TensorMapElement::bfloat16;
    shape.rank = 2;
    shape.dims = {static_cast<std::uint64_t>(product.depth), static_cast<std::uint64_t>(rows)};
    shape.strides = {0, static_cast<std::uint64_t>(matrix.row_stride) * 2};
    shape.box = {gemm_ladder::kStep, gemm_ladder::kTile};
    shape.swizzle = gpu::TensorMapSwizzle::bytes_128;
    const Result<ptx::TensorMap> encoded =
        gpu::encode_tensor_map(driver, name, shape, reinterpret_cast<gpu::DevicePointer>(matrix.data));
    if (encoded.ok()) map = *encoded;
    return encoded.status();
  };
  if (Status status = encode("a", product.a, product.rows, call.a_map); !status.ok()) return status;
  if (Status status = encode("b", product.b, product.columns, call.b_map); !status.ok()) return status;
  call.a = product.a.data;
  call.b = product.b.data;
  call.out = product.out.data;
  call.rows = static_cast<int>(product.rows);
  call.columns = static_cast<int>(product.columns);
  call.depth = static_cast<int>(product.depth);
  call.steps = (call.depth + gemm_ladder::kStep - 1) / gemm_ladder::kStep;
  call.schedule = {rung_tiles(product.rows), rung_tiles(product.columns), 1, kBandTiles};
  return {};
}

bool is_rung(const gpu::GemmCandidate& candidate, const Rung& rung) {
  const GemmConfig& config = candidate.config;
  return !config.few_rows && config.ping_pong == (rung.row.at("ping_pong").get<int>() != 0) &&
         config.multicast == rung.row.at("multicast").get<int>() && config.split == 1 && !config.shares_a &&
         config.tile_columns * config.consumers >= 256;
}

Result<gpu::GemmCandidate> candidate_of(const Rung& rung, const warploom_gemm& call, const gpu::DeviceInfo& device) {
  for (const gpu::GemmCandidate& each : gpu::gemm_candidates(call, device)) {
    if (is_rung(each, rung)) return each;
  }
  return Status::runtime_error("no kernel of the product is " + rung.name + " for this shape");
}

sim::Scheme scheme_of(const Rung& rung) {
  return rung.name == "synchronous"       ? sim::Scheme::sync
         : rung.name == "register-staged" ? sim::Scheme::register_staged
         : rung.name == "cp-async"        ? sim::Scheme::cp_async
                                          : sim::Scheme::specialized;
}

}  // namespace warploom::cli
