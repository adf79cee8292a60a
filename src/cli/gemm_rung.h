// The rungs of the GEMM ladder (examples/gemm_ladder, docs/gemm-ladder.md): what each is launched with.
#pragma once

#include "cli/ladder.h"
#include "gemm_ladder/call.h"
#include "gpu/driver.h"
#include "gpu/gemm_plan.h"
#include "sim/scenario.h"

namespace warploom::cli {

/// Of a rung with a file of its own.
gemm_ladder::Rung sizes_of(const Rung& rung);
gpu::KernelRequest gemm_rung_request(const Rung& rung, const gpu::Architecture& architecture,
                                     trace::Level level = trace::Level::off);
/// Fills the argument of such a rung. Error: runtime_error when a tensor map cannot be encoded.
Status fill_call(const gpu::Driver& driver, const warploom_gemm& product, gemm_ladder::Call& call);
int rung_tiles(std::int64_t length);

/// Whether a candidate of the product is what a rung without a file stands for.
bool is_rung(const gpu::GemmCandidate& candidate, const Rung& rung);
/// That candidate. Error: runtime_error when the product has none.
Result<gpu::GemmCandidate> candidate_of(const Rung& rung, const warploom_gemm& call, const gpu::DeviceInfo& device);

sim::Scheme scheme_of(const Rung& rung);

}  // namespace warploom::cli
