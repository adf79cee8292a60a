// Which tile a matrix product gets: an analytic function of its shape and the device.
#pragma once

#include <string>
#include <vector>

#include "gemm/gemm_config.h"
#include "gpu/plan.h"

namespace warploom::gpu {

extern const KernelFamily kGemm;
/// For few rows: without tensor maps.
extern const KernelFamily kGemmFewRows;

/// The configuration of a launch of these families.
GemmConfig gemm_config(const ConfigKey& key);

/// A configuration that could serve a product, and what the model says of it.
struct GemmCandidate {
  GemmConfig config;
  long long tiles = 0;       ///< of all CTAs of a cluster together
  long long waves = 0;       ///< of tiles, one after the other on every cluster
  double tile_cycles = 0;    ///< of one CTA
  double memory_cycles = 0;  ///< the least that memory takes for operands and result
  double cycles = 0;         ///< all in all
  const char* limiter = "";  ///< what a step of the main loop waits for
};

/// All candidates, the fastest by the model first.
std::vector<GemmCandidate> gemm_candidates(const warploom_gemm& call, const DeviceInfo& device);

/// The plan of a product, without its tensor maps. Errors: runtime_error for a device that is not Hopper, and for more
/// tiles than one launch takes.
Status plan_gemm(const warploom_gemm& call, const DeviceInfo& device, GpuPlan& plan);

/// The same with one of the product's candidates.
Status plan_gemm(const warploom_gemm& call, const DeviceInfo& device, const GemmCandidate& chosen, GpuPlan& plan);

/// The tensor maps of a planned product with something to compute.
Status encode_gemm_maps(const warploom_gemm& call, const Driver& driver, PlannedLaunch& launch);

/// What `warploom explain` prints.
std::string describe_gemm(const warploom_gemm& call, const DeviceInfo& device, const GpuPlan& plan);

}  // namespace warploom::gpu
