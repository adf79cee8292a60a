// Programs of a user as JSON:
//
//   {"resources": ["TC", "MEM"], "barriers": ["full"], "legend": {"L": "load"},
//    "executors": [{"name": "loop", "program": [["busy", 100], ["async", "MEM", 768, "L", 700, "full"], ["wait",
//    "full", 1],
//                                               ["use", "TC", 1024, "M"], ["arrive", "full"]]}]}
//
// busy may carry a tag: ["busy", 100, "i"]. Without "resources" the SM's four are there.
#pragma once

#include <string>

#include "sim/scenario.h"

namespace warploom::sim {

/// The model, or an error that names the executor, the operation and what is wrong with it.
Result<Model> model_from_json(const std::string& text);

/// Reads and runs it; the machine only converts cycles to time.
Result<Run> run_program(const std::string& text, const Machine& machine, const std::string& title,
                        RunOptions options = {});

}  // namespace warploom::sim
