// What a traced kernel's strips and rings are, and the model that speaks of the same pipeline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/hopper_backward_config.h"
#include "attention/hopper_backward_dq_config.h"
#include "attention/hopper_backward_keys_config.h"
#include "attention/hopper_backward_pair_config.h"
#include "attention/hopper_forward_config.h"
#include "gemm/gemm_config.h"
#include "sim/scenario.h"
#include "trace/recording.h"

namespace warploom::trace {

/// A warp that marks. A consumer has a lane of products, under a tag of its own as in the simulator.
struct Role {
  std::string name;
  char product = ' ';    ///< ' ': it issues none
  bool watches = false;  ///< it only sees loads land; not drawn
};

/// A ring of slots by the number that marks name it with. Filling n lies in slot n mod slots.
struct RingShape {
  std::string name;  ///< before "full[0]"; empty for the only ring
  int slots = 1;
  bool loaded = true;  ///< by TMA; else a hand-over of words, without a lane of its own
};

/// Products that are issued one after the other and waited for at once, by the number that marks name them with.
struct ProductGroup {
  struct Part {
    std::string name;  ///< of a lane of its own; empty: none
    double work = 1;   ///< beside the others'
  };
  int ring = 0;  ///< whose fillings they read, and are numbered by
  std::vector<Part> parts;
};

struct Subject {
  std::string title;
  std::vector<Role> roles;                           ///< by strip
  std::vector<RingShape> rings;                      ///< by number
  std::vector<ProductGroup> products;                ///< by number
  std::vector<std::pair<char, std::string>> legend;  ///< what the tags stand for
  std::int64_t steps_of_tile = 0;                    ///< GEMM: fillings of ring 0 that a tile reads
  sim::Scenario model;                               ///< the same pipeline; fit_model() sets its amount of work
  std::vector<sim::Variant> schedules;               ///< attention: of the model, to stand beside
  std::vector<std::string> differences;              ///< what the model leaves out
};

/// Columns of A and B are the GEMM's K.
Subject subject_of(const GemmConfig& config, const sim::Machine& machine, std::int64_t steps);
/// One of the first rungs of the GEMM ladder: two warpgroups that share a tile, and a producer where the scheme is
/// specialized.
Subject subject_of(sim::Scheme scheme, int stages, int tile, int step, const sim::Machine& machine, std::int64_t steps);
Subject subject_of(const HopperForwardConfig& config, const sim::Machine& machine);
Subject subject_of(const HopperBackwardConfig& config, const sim::Machine& machine);
Subject subject_of(const HopperBackwardPairConfig& config, const sim::Machine& machine);
Subject subject_of(const HopperBackwardKeysConfig& config, const sim::Machine& machine);
Subject subject_of(const HopperBackwardDqConfig& config, const sim::Machine& machine);

/// Error: runtime_error for a mark of a ring or product that the subject does not have, naming strip and mark.
Status check_marks(const Subject& subject, const CtaTrace& cta);

/// The model with as much work as the CTA did: its tiles, or its blocks.
sim::Scenario fit_model(const Subject& subject, const CtaTrace& cta);

}  // namespace warploom::trace
