// What must hold between the marks of a CTA's warps whatever the timing: the promises of the pipeline's barriers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/recording.h"
#include "trace/subject.h"

namespace warploom::trace {

struct OrderCheck {
  std::int64_t checked = 0;             ///< pairs of marks
  std::vector<std::string> violations;  ///< the first few, in words
  std::int64_t violated = 0;
};

/// * A filling was asked for before any consumer had it.
/// * A slot was filled again only after every consumer had begun to wait for the product that read it. (It let the slot
///   go between the end of that wait and its next mark, so of the end nothing sharper can be said.)
/// * What consumers hand over they had begun to before any consumer had it.
/// * Turns went round: consumer c + 1 got its n-th after consumer c, and consumer 0 its next after the last one.
///
/// All clocks are one SM's, so "before" needs no tolerance.
OrderCheck check_order(const Subject& subject, const CtaTrace& cta);

}  // namespace warploom::trace
