// Bias providers: R for the scores that a warp holds as mma accumulators (docs/attention.md, section 5).
//
// A provider is made for one tile of query rows, moves from key tile to key tile, and hands out R element by element:
//
// * start(first_column) begins to fetch the warp's part of a key tile, in a group of cp.async of its own.
// * wait<Newer>() returns when it is there; Newer: how many groups begun after it may still be in flight.
// * for_each<Blocks>(f) calls f(m, n, e, r) for every accumulator element e of the blocks (m16 m, n8 n), all of them
//   constants once unrolled, and returns, the same in all lanes, whether one of the r may be -inf.
//
// Nothing is read outside the bias's own memory, and where R is absent (a row before the first key, or beyond a dense
// bias that is too small) it is 0.
#pragma once

#include "attention/bias_bucketed.h"
#include "attention/bias_rows.h"
#include "attention/kinds.h"
