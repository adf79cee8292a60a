// What `bench ladder` and `bench gemm-ladder` share: contestants that take turns, and the peers among them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/gpu_clock.h"
#include "cli/ladder.h"
#include "cli/peer_script.h"

namespace warploom::cli {

/// The options of both.
struct LadderOptions {
  std::vector<std::string> rungs;
  std::string device = "auto";
  std::string architecture;  ///< given: compile for it and measure nothing
  std::string python;
  int rounds = 7;
  double round_ms = 60;
  JsonOption json;

  void add_to(CLI::App& command);
};

/// The rungs of examples/`folder`/ladder.json that are asked for. Errors: those of read_ladder and choose_rungs.
Result<std::vector<Rung>> asked_rungs(const LadderOptions& options, const std::string& folder);

/// The device that --architecture names, an H200 when nothing does.
Result<gpu::DeviceInfo> device_to_compile_for(const LadderOptions& options);

/// One that takes part in every round.
struct Contestant {
  std::string name;
  std::function<Result<double>()> measure;  ///< milliseconds of a call
};

/// A kernel that takes part: enough launches to fill --round-ms. Warms it up. The clock outlives the contestant.
Result<Contestant> contestant_of(const LadderOptions& options, const std::string& name, GpuClock& clock,
                                 const std::function<Status()>& launch);

/// The medians over the rounds, in the contestants' order; every round has an order of its own.
Result<std::vector<double>> take_turns(const std::vector<Contestant>& contestants, int rounds);

/// Starts bench/ladder_peers.py, has it prepare `question` and adds its implementations. Without torch or a GPU there
/// the peers are left out, which standard error says.
void add_peers(const LadderOptions& options, const Json& question, std::vector<Contestant>& contestants);

/// Registers, spills and instructions per mma of every rung, to standard output or --json; what there is without a GPU.
int print_code(const LadderOptions& options, const std::vector<Rung>& rungs, const std::vector<RungCode>& codes);

}  // namespace warploom::cli
