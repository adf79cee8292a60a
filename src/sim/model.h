// Programs as data: what an executor (a warp or a warpgroup) does, one operation after the other. Nothing here knows
// about GEMM or attention; a scheme is a function that returns a Model.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "warploom/status.h"

namespace warploom::sim {

/// Time and durations, in whole clock cycles of the SM.
using Cycles = std::int64_t;

/// The longest duration one operation may ask for, and the most operations a model may hold: together they keep every
/// sum far inside 64 bits.
inline constexpr Cycles kLongestOperation = Cycles{1} << 36;
inline constexpr std::int64_t kMostOperations = std::int64_t{1} << 24;

enum class OperationKind : std::uint8_t {
  use,     ///< reserve a resource and block until the work ends
  async,   ///< reserve a resource, go on at once; `barrier` gets one arrival `latency` cycles after the work ends
  busy,    ///< the executor alone is occupied; no resource is held
  wait,    ///< block until the barrier's count is at least `cycles`
  arrive,  ///< add one to the barrier's count; takes no time
};

struct Operation {
  OperationKind kind = OperationKind::busy;
  char tag = ' ';              ///< one letter, drawn in timelines
  std::uint16_t resource = 0;  ///< use, async
  std::uint32_t barrier = 0;   ///< async, wait, arrive
  Cycles cycles = 0;           ///< use, async, busy: duration; wait: the count to reach
  Cycles latency = 0;          ///< async
};

using Resource = std::uint16_t;
using Barrier = std::uint32_t;

/// A warp or warpgroup with its straight-line program. The members append one operation each and return the executor,
/// so that a program reads like its text: `loop.busy(100).async(MEM, 768, 'L', 700, full).wait(full, 1)`.
struct Executor {
  std::string name;
  std::vector<Operation> program;

  Executor& use(Resource resource, Cycles cycles, char tag) {
    program.push_back({OperationKind::use, tag, resource, 0, cycles, 0});
    return *this;
  }
  Executor& async(Resource resource, Cycles cycles, char tag, Cycles latency, Barrier barrier) {
    program.push_back({OperationKind::async, tag, resource, barrier, cycles, latency});
    return *this;
  }
  Executor& busy(Cycles cycles, char tag = 'b') {
    program.push_back({OperationKind::busy, tag, 0, 0, cycles, 0});
    return *this;
  }
  Executor& wait(Barrier barrier, Cycles count) {
    program.push_back({OperationKind::wait, ' ', 0, barrier, count, 0});
    return *this;
  }
  Executor& arrive(Barrier barrier) {
    program.push_back({OperationKind::arrive, ' ', 0, barrier, 0, 0});
    return *this;
  }
};

/// Everything a run needs. Executors start at cycle 0 in the order in which they stand here.
struct Model {
  std::vector<std::string> resources;
  std::vector<std::string> barriers;
  std::vector<Executor> executors;
  std::vector<std::pair<char, std::string>> legend;  ///< what each tag stands for

  Resource add_resource(std::string name) {
    resources.push_back(std::move(name));
    return static_cast<Resource>(resources.size() - 1);
  }
  Barrier add_barrier(std::string name) {
    barriers.push_back(std::move(name));
    return static_cast<Barrier>(barriers.size() - 1);
  }
  void add_executor(Executor executor) { executors.push_back(std::move(executor)); }
};

/// The four resources of one SM, in the order of simulator.md section 1. sm_model() adds them to an empty model in this
/// order.
inline constexpr Resource TC = 0, MEM = 1, SFU = 2, FMA = 3;
Model sm_model();

/// Ok when every operation names an existing resource and barrier, no duration or latency is negative or above
/// kLongestOperation, and there are at most kMostOperations.
Status validate(const Model& model);

/// "name[index]"
std::string numbered(std::string name, std::int64_t index);

/// What a tag stands for, or the tag itself where the legend is silent.
std::string tag_name(const Model& model, char tag);

}  // namespace warploom::sim
