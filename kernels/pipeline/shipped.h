// The table of shipped pipelines: what `warploom check` checks. A new pipeline is a description and a row here.
#pragma once

#include "pipeline/attention_protocols.h"
#include "pipeline/backward_protocols.h"
#include "pipeline/gemm_protocols.h"
#include "pipeline/pair_protocol.h"
#include "pipeline/two_kernel_protocols.h"

namespace warploom::pipeline {

struct Pipeline {
  const char* name;
  const char* summary;
  Protocol (*describe)(const Sizes&);
};

inline constexpr Pipeline kShippedPipelines[] = {
    {"cp-async", "multi-stage cp.async ring, every warpgroup loads and computes", &cp_async_ring},
    {"specialized", "producer warp and a ring that all consumers read", &specialized_ring},
    {"ping-pong", "producer warp; consumers take whole tiles in turns", &ping_pong},
    {"persistent", "producer hands work items over through a ring of tile slots", &persistent},
    {"gemm-cooperative", "the product GEMM: consumers share a tile, two steps on the tensor core", &gemm_cooperative},
    {"gemm-ping-pong", "the product GEMM: consumers take whole tiles in turns", &gemm_ping_pong},
    {"two-stage", "attention, next scores under this softmax, no turns", &two_stage_attention},
    {"turns", "attention with K and V rings and a turn a step", &attention_in_turns},
    {"across-tiles", "persistent attention: tile ring, two Q slots, turns, work items without a seam",
     &persistent_attention},
    {"hopper", "the forward kernel for Hopper: scheduler, loader, consumers that pass over unseen tiles",
     &hopper_attention},
    {"hopper-one-query", "the same with one Q slot, for wide heads", &hopper_attention_one_query},
    {"hopper-bias", "the forward kernel for Hopper with a warp that brings the bias beside the keys",
     &hopper_attention_bias},
    {"hopper-bias-turns", "the same with two such warps, every other key tile each", &hopper_attention_bias_turns},
    {"hopper-backward",
     "the one-pass backward kernel for Hopper: dQ one step late from dS that consumers exchange, its sums kept by a "
     "fifth role",
     &hopper_backward},
    {"hopper-backward-turns", "the same, consumers begin their tiles in turns", &hopper_backward_turns},
    {"hopper-backward-ordered", "the same, deterministic: a sixth role adds dQ, in the order of the keys",
     &hopper_backward_ordered},
    {"hopper-backward-one-by-one", "the same for float16: dQ of the tile before after the products with this one",
     &hopper_backward_one_by_one},
    {"hopper-backward-cleared", "the same with sums that were cleared before", &hopper_backward_cleared},
    {"hopper-backward-bias",
     "the same with a bias and its gradient, which one role stores, and another clears where no tile holds any",
     &hopper_backward_bias},
    {"hopper-backward-tables", "the same with a bucketed bias, whose tables a role lays out for each tile",
     &hopper_backward_tables},
    {"hopper-pair", "one pass for wide heads on Hopper: two CTAs that load tiles for each other and send each other dS",
     &hopper_pair},
    {"hopper-keys", "dK and dV on Hopper: two consumers, a gradient each, that compute the tiles' scores in turn",
     &hopper_keys},
    {"hopper-dq", "dQ on Hopper: products in turns, dQ of a tile in the turn of the next", &hopper_dq},
};

}  // namespace warploom::pipeline
