// What the in-kernel tracer writes, for the kernels (pipeline/trace.h) and for the host (src/trace), which reads it.
//
// A mark says what a warp does from here on; the next mark of the same warp ends it. So one clock reading serves for an
// end and a beginning, and a step of a main loop needs three to eight of them.
#pragma once

#include "geometry/host_device.h"

namespace warploom::trace {

/// How much a traced kernel marks.
enum class Level : int {
  off,
  rings,  ///< producers, what a watching warp sees land, turns and epilogues: nothing in a consumer's main loop
  steps,  ///< every step of the consumers, too: a mark there costs some 50 cycles (docs/tracer.md)
};

enum class Mark : unsigned char {
  idle,          ///< nothing that the marks know of
  wait_full,     ///< waits until filling `number` of the ring has landed
  wait_empty,    ///< waits until the slot for filling `number` of the ring is free
  turn,          ///< waits for its turn on the tensor core
  load,          ///< issues the loads of filling `number`
  product,       ///< issues a product (or several, `ring` says which) that reads filling `number`
  wait_product,  ///< waits for it, and so for those that it issued before
  scores,        ///< attention: turns scores into probabilities, or silu; with the mask, and conversion of the result
  epilogue,      ///< writes a tile out
  landed,        ///< a watching warp has seen that filling `number` has landed
  hand_over,     ///< waits for the slot of filling `number`, and fills it for other consumers
  add,           ///< adds a tile of sums to those in memory
};
inline constexpr int kMarks = static_cast<int>(Mark::add) + 1;

/// One mark: 8 bytes, stored with one instruction.
struct Record {
  unsigned clock = 0;  ///< the low half of the SM's clock64: it wraps around, the reader knows
  unsigned what = 0;   ///< word_of
};
inline constexpr int kRingShift = 8, kNumberShift = 12;
inline constexpr unsigned kMarkMask = (1u << kRingShift) - 1, kRingMask = (1u << (kNumberShift - kRingShift)) - 1;
inline constexpr unsigned kNumberMask = 0xFFFFFFFFu >> kNumberShift;

/// A record's second word, whose number keeps its low bits: at the top, so that one instruction makes the word.
WARPLOOM_HD constexpr unsigned word_of(Mark mark, int ring, unsigned number) {
  return (number << kNumberShift) + (static_cast<unsigned>(ring) << kRingShift | static_cast<unsigned>(mark));
}

/// What a warp writes beside its records: when it began and ended by the SM's clock and by the GPU's timer, which all
/// SMs share.
struct Strip {
  unsigned long long start_clock = 0, start_ns = 0;  ///< start_ns is 0 where no warp has come
  unsigned long long end_clock = 0, end_ns = 0;      ///< 0 where the warp has not ended
  unsigned marks = 0;  ///< how many the warp made; those beyond the capacity were counted, not stored
  unsigned sm = 0, cta = 0, warp = 0;
};

/// Where the marks go: `strips_of_cta` strips for each of the CTAs that record, `capacity` records for each strip. The
/// last member of a kernel's parameters, which only its traced variant reads.
struct Sheet {
  Strip* strips = nullptr;
  Record* records = nullptr;
  int strips_of_cta = 0;
  unsigned capacity = 0;
  unsigned first_cta = 0, ctas = 0;  ///< that record; the others execute the marks and store nothing
};

}  // namespace warploom::trace
