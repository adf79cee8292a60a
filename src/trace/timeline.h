// One CTA's marks as a run of the simulator, so that the same pictures and tables are made of both.
#pragma once

#include "sim/scenario.h"
#include "trace/recording.h"
#include "trace/subject.h"

namespace warploom::trace {

/// Lanes: TC[c] and FMA[c] for each consumer, one for each of its products that have names ("S[0]", "dQ[1]"; together
/// they are TC[c]), and one for each slot of a loaded ring ("MEM[0]", "K[0]").
///
/// A product lies on its lane from when it was issued, or the one before it ended, to when its consumer had waited for
/// it; a load from its issue to when the first consumer had it. Both ends are as late as the consumer looked: what
/// nobody waits for, nobody sees the end of. Products that are waited for at once share the time as their work is. A
/// warp's own spans are those between its marks.
sim::Run run_of(const Subject& subject, const Recording& recording, const CtaTrace& cta);

}  // namespace warploom::trace
