// The attention schedules of simulator.md section 5 as programs. A block of work is described by what comes before and
// after the elementwise step, so that the same four schedules serve softmax forward (the spec's), HSTU and backward
// (ours, docs/simulator.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/gemm.h"
#include "sim/machine.h"
#include "sim/model.h"

namespace warploom::sim {

enum class Variant {
  serial,  ///< one warpgroup, one thing after the other
  inter,   ///< two warpgroups that take turns on the tensor core (ping-pong)
  intra,   ///< one warpgroup, the next block's first product is issued before this block's elementwise step
  both,    ///< two warpgroups, each as in intra, without turns
};

enum class Step { softmax, hstu };
/// The last two are backward's products in two kernels: S, dP, dV, dK; and S, dP, dQ.
enum class Pass { forward, backward, backward_keys, backward_dq };

/// A CTA's share of attention: `blocks` (query tile, key block) pairs, dealt evenly to its warpgroups; an odd one goes
/// to the first.
struct AttentionScenario {
  Machine machine;
  Variant variant = Variant::serial;
  std::int64_t blocks = 32;
  std::int64_t rows = 64;   ///< query rows of a warpgroup
  std::int64_t keys = 128;  ///< keys of a block
  std::int64_t head_dim = 128;
  double operations = 4;  ///< CUDA-core operations per score, beside the exponential
  bool fp8 = false;       ///< products at twice the tensor rate
  // Ours (docs/simulator.md): the defaults leave the spec's model as it is.
  Step step = Step::softmax;
  Pass pass = Pass::forward;
  std::int64_t bias_bytes = 0;    ///< bytes of bias per score that each block loads; 0: no bias
  std::int64_t cheap_blocks = 0;  ///< how many of the blocks a mask makes cheap (they come last)
  double cheap_share = 0.5;       ///< their cost as a share of a full block's
  std::int64_t kv_stages =
      0;  ///< 0: K/V loads are hidden; else a producer fills a ring of so many K/V blocks, shared by the warpgroups
};

/// One block's demands in cycles.
struct BlockWork {
  std::vector<Cycles> before;  ///< products before the elementwise step: S = QK' (backward: also dP = dO V')
  Cycles sfu = 0;
  Cycles fma = 0;
  std::vector<Cycles> after;  ///< products after it: O += PV (backward: dV, dK, dQ, or those of the kernel)
  Cycles bias = 0;            ///< load-pipe time of the bias tile
  Cycles gradient = 0;        ///< load-pipe time of what the block adds to dQ
};

Status validate(const AttentionScenario& scenario);

/// The demands of a full block, or of one that a mask makes cheap.
BlockWork block_work(const AttentionScenario& scenario, bool cheap);

/// The programs of the scenario; call validate() first.
Model attention_model(const AttentionScenario& scenario);

/// How many blocks warpgroup w gets.
std::int64_t blocks_of(const AttentionScenario& scenario, std::int64_t warpgroup);
std::int64_t warpgroups(Variant variant);

std::vector<std::string> notes(const AttentionScenario& scenario);

/// serial: n*(2G + M); intra: G + (n-1)*(max(G, M) + G) + M + G. None for the other variants and for our extensions.
std::optional<ClosedForm> closed_form(const AttentionScenario& scenario);

/// The tensor core's busy time, from the products alone.
Cycles tensor_work(const AttentionScenario& scenario);

const char* to_string(Variant variant);
const char* to_string(Pass pass);

}  // namespace warploom::sim
