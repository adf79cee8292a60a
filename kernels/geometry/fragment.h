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

/// The order in which ldmatrix.x4 brings the four 8x8 blocks of a 16x16 block. An mma wants the registers of an operand
/// side by side; in the wrong order each of them is moved, one more instruction a register.
enum class BlockOrder {
  a,  ///< (0,0) (1,0) (0,1) (1,1): A's registers. Transposed: B of columns 0..7, then of 8..15
  b,  ///< (0,0) (0,1) (1,0) (1,1): 16 rows of B as (n, k), n8 by n8. Transposed: A's registers
};

/// The row of a 16x16 block whose 16 bytes a lane addresses in ldmatrix.x4, and the chunk (0 or 1) of that row.
WARPLOOM_HD constexpr int ldmatrix_row(int lane, BlockOrder order = BlockOrder::a) {
  return order == BlockOrder::a ? lane % 16 : lane % 8 + lane / 16 * 8;
}
WARPLOOM_HD constexpr int ldmatrix_chunk(int lane, BlockOrder order = BlockOrder::a) {
  return order == BlockOrder::a ? lane / 16 : lane / 8 % 2;
}

/// The register of 16 rows of B, as (n, k), that is operand register k of mma n.
WARPLOOM_HD constexpr int b_register(BlockOrder order, int n, int k) {
  return order == BlockOrder::a ? n + 2 * k : 2 * n + k;
}

}  // namespace warploom::geometry
