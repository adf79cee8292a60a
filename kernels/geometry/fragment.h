// Which element of a matrix a lane of a warp holds.
//
// A fragment is an 8x8 block of 16-bit values, two neighbours per lane in one 32-bit register. mma.m16n8k16 (PTX ISA,
// "Matrix fragments for mma.m16n8k16") takes A (16x16) as 2x2 fragments, B (8 columns x 16, stored by column) as 1x2,
// and adds into C (16x8) of float, where a lane holds two neighbours of row lane / 4 and two of row lane / 4 + 8.
#pragma once

#include "geometry/host_device.h"

namespace warploom::geometry {

struct Element {
  int row = 0;
  int column = 0;
};

/// The first of a lane's two neighbours in an 8x8 fragment.
WARPLOOM_HD constexpr Element fragment_element(int lane) {
  return {lane / 4, lane % 4 * 2};
}

/// The first element of A's register `index` (0..3): fragments in the order (0,0) (1,0) (0,1) (1,1).
WARPLOOM_HD constexpr Element a_element(int lane, int index) {
  const Element e = fragment_element(lane);
  return {e.row + index % 2 * 8, e.column + index / 2 * 8};
}

/// The first element of B's register `index` (0..1), as (n, k).
WARPLOOM_HD constexpr Element b_element(int lane, int index) {
  const Element e = fragment_element(lane);
  return {e.row, e.column + index * 8};
}

/// The element of C's float `index` (0..3).
WARPLOOM_HD constexpr Element c_element(int lane, int index) {
  const Element e = fragment_element(lane);
  return {e.row + index / 2 * 8, e.column + index % 2};
}

/// The element of a wgmma's accumulators (64 x N) that float `index` of thread `thread` (of the warpgroup) is.
WARPLOOM_HD constexpr Element accumulator_element(int thread, int index) {
  const Element e = c_element(thread % 32, index % 4);
  return {thread / 32 * 16 + e.row, index / 4 * 8 + e.column};
}

/// The row of a 16x16 block whose 16 bytes a lane addresses in ldmatrix.x4, and the chunk (0 or 1) of that row: the
/// four 8x8 blocks arrive in the order of A's registers.
WARPLOOM_HD constexpr int ldmatrix_row(int lane) {
  return lane % 16;
}
WARPLOOM_HD constexpr int ldmatrix_chunk(int lane) {
  return lane / 16;
}

}  // namespace warploom::geometry
