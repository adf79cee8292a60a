// The accuracy rule of docs/attention.md, section 8, applied to one call's results.
#pragma once

#include <string>
#include <vector>

#include "cli/problem.h"
#include "cli/reference.h"

namespace warploom::cli {

/// How one result tensor compares.
struct Judgement {
  std::string tensor;    ///< out, lse, dq, dk, dv, dbias, dposition, dtime
  double error = 0;      ///< ||x - x*|| / ||x*||; lse: the largest difference
  double limit = 0;      ///< of that
  double worst_row = 0;  ///< the largest error of a row in units of its limit
  bool ok = true;
  std::string reason = {};  ///< what is wrong, when it is not
};

/// Compares the problem's results with the reference. `call` is the one that was run; forward judges out and lse,
/// backward the gradients. Also checks that places that must be 0 are, and that nobody wrote into the gaps.
std::vector<Judgement> judge(const Problem& problem, const warploom_attention& call);

}  // namespace warploom::cli
