// What a makespan is made of: the chain of causes from the last executor's end back to cycle 0.
#pragma once

#include <string>
#include <vector>

#include "sim/engine.h"

namespace warploom::sim {

/// A stretch of the critical path. `what` is a resource ("TC"), what an executor was busy with ("issue"), or "latency".
struct PathPiece {
  Cycles start = 0;
  Cycles end = 0;
  std::string what;
  std::uint32_t executor = 0;
};

struct Share {
  std::string what;
  Cycles cycles = 0;
};

/// The pieces in order of time; they touch, and cover [0, makespan]. Needs a run with RunOptions::trace.
///
/// A span begins when its executor reached it or when its resource became free, whichever is later; a wait ends with
/// the arrival that met its count. Following the later cause backwards gives the path. When both are equal the
/// executor's own past is followed.
std::vector<PathPiece> critical_path(const Model& model, const Timeline& timeline);

/// The path by what it is made of, largest first. The first is the limiter.
std::vector<Share> shares(const std::vector<PathPiece>& path);

/// "TC 96 %, MEM 1 %, ..." of the path's length.
std::string to_string(const std::vector<Share>& shares, std::size_t most = 4);

}  // namespace warploom::sim
