// What a producer warp fills a slot of a ring with (pipeline/mbarrier_ring.h), in the three verbs of every pipeline:
//
//   producer   ring.wait_empty(at); start_loading(ring, at, slot, copy); at.advance();
//   consumer   ring.wait_full(at); ...; ring.release(at); at.advance();
//
// A copy is a box of a tensor, rows at a stride, or rows picked by their numbers, all by TMA into a ring whose
// `writers` is 1; or rows by cp.async, for which it is 32. All lanes of the warp call start_loading with the same
// arguments. Rows follow one another in the slot; their bytes, addresses and strides are multiples of 16.
#pragma once

#include "pipeline/mbarrier_ring.h"
#include "ptx/shared_memory.h"
#include "ptx/tma.h"

namespace warploom::pipeline {

/// The box of the map at `corner`, the innermost coordinate first. `bytes`: of the whole box.
template <int Rank>
struct Box {
  const ptx::TensorMap* map;
  int corner[Rank];
  uint32 bytes;
};

/// `count` rows of `bytes`, `stride` bytes from one to the next.
struct StridedRows {
  const void* first;
  long long stride;
  int count;
  uint32 bytes;
};

/// The same of a table's rows whose numbers are listed.
struct PickedRows {
  StridedRows table;   ///< count: rows to copy
  const int* numbers;  ///< in global memory
};

/// Rows by cp.async; those from `valid` on are zeros and are not read. Ordinary loads may read them after wait_full,
/// wgmma and TMA may not.
struct CopiedRows {
  StridedRows rows;
  int valid;
};

template <int Slots, int Rank>
__device__ __forceinline__ void start_loading(const MbarrierRing<Slots>& ring, const RingCursor<Slots>& at, uint32 slot,
                                              const Box<Rank>& box) {
  if (threadIdx.x % 32 != 0) return;
  ring.expect(at, box.bytes);
  ptx::tma_load(box.map, slot, ring.full(at.slot()), box.corner);
}

namespace detail {

/// `number_of(row)`: which of the rows at the stride it is.
template <int Slots, typename NumberOf>
__device__ __forceinline__ void start_rows(const MbarrierRing<Slots>& ring, const RingCursor<Slots>& at, uint32 slot,
                                           const StridedRows& rows, const NumberOf& number_of) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane == 0) ring.expect(at, rows.count * rows.bytes);
  __syncwarp();  // no byte lands before it is expected
  for (int row = lane; row < rows.count; row += 32) {
    ptx::bulk_load(slot + row * rows.bytes, static_cast<const char*>(rows.first) + number_of.of(row) * rows.stride,
                   rows.bytes, ring.full(at.slot()));
  }
}

struct InOrder {
  __device__ __forceinline__ int of(int row) const { return row; }
};
struct ByNumber {
  const int* numbers;
  __device__ __forceinline__ int of(int row) const { return numbers[row]; }
};

}  // namespace detail

template <int Slots>
__device__ __forceinline__ void start_loading(const MbarrierRing<Slots>& ring, const RingCursor<Slots>& at, uint32 slot,
                                              const StridedRows& rows) {
  detail::start_rows(ring, at, slot, rows, detail::InOrder{});
}

template <int Slots>
__device__ __forceinline__ void start_loading(const MbarrierRing<Slots>& ring, const RingCursor<Slots>& at, uint32 slot,
                                              const PickedRows& rows) {
  detail::start_rows(ring, at, slot, rows.table, detail::ByNumber{rows.numbers});
}

template <int Slots>
__device__ __forceinline__ void start_loading(const MbarrierRing<Slots>& ring, const RingCursor<Slots>& at, uint32 slot,
                                              const CopiedRows& copy) {
  const StridedRows& rows = copy.rows;
  const uint32 chunks = rows.bytes / 16;
  for (uint32 i = threadIdx.x % 32; i < rows.count * chunks; i += 32) {
    const int row = static_cast<int>(i / chunks);
    const uint32 inside = i % chunks * 16;
    ptx::cp_async_16(slot + row * rows.bytes + inside,
                     static_cast<const char*>(rows.first) + row * rows.stride + inside, row < copy.valid);
  }
  ptx::cp_async_mbarrier_arrive(ring.full(at.slot()));
}

}  // namespace warploom::pipeline
