// Marks in a kernel. With a configuration's `trace` they record what a warp does and when (docs/tracer.md); without it
// they are empty and leave no instruction: tests/trace compares the machine code with that of a kernel without marks.
#pragma once

#include "pipeline/trace_records.h"
#include "ptx/types.h"

namespace warploom::trace {

using ptx::uint32;

/// What a role marks with: its base class, so that the untraced one takes no room at all.
template <Level Marked>
struct Pen;

template <>
struct Pen<Level::off> {
  __device__ __forceinline__ void start_trace(const Sheet&, int, bool) {}
  __device__ __forceinline__ void mark(Mark, int = 0, uint32 = 0) const {}
  __device__ __forceinline__ void mark_step(Mark, int = 0, uint32 = 0) const {}
  __device__ __forceinline__ void finish_trace(const Sheet&, int) const {}
};

/// Every thread of the role has one and goes through the same instructions without a branch (one between wgmma and its
/// wait would serialise it); only the one that records has room to store.
template <Level Marked>
struct Pen {
  Record* trace_records = nullptr;  ///< of its strip
  uint32 trace_capacity = 0;        ///< 0 for threads that do not record
  mutable uint32 marks_made = 0;

  __device__ static __forceinline__ long long index_of(const Sheet& sheet, int strip) {
    return static_cast<long long>(blockIdx.x) * sheet.strips_of_cta + strip;
  }
  __device__ static __forceinline__ unsigned long long timer_ns() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  }

  /// Before the role's first mark. `strip`: its number among the CTA's recording warps; `records_here`: in this thread.
  __device__ __forceinline__ void start_trace(const Sheet& sheet, int strip, bool records_here) {
    if (!records_here) return;
    trace_capacity = sheet.capacity;
    trace_records = sheet.records + index_of(sheet, strip) * trace_capacity;
    Strip& header = sheet.strips[index_of(sheet, strip)];
    asm("mov.u32 %0, %%smid;" : "=r"(header.sm));
    header.cta = blockIdx.x;
    header.warp = threadIdx.x / 32;
    header.start_ns = timer_ns();
    header.start_clock = clock64();
  }

  /// From here on the warp does `what`.
  __device__ __forceinline__ void mark(Mark what, int ring = 0, uint32 number = 0) const {
    const uint32 word =
        static_cast<uint32>(what) << kMarkShift | static_cast<uint32>(ring) << kRingShift | (number & kNumberMask);
    asm volatile(
        "{\n\t.reg .pred fits;\n\t.reg .u32 now;\n\t"
        "setp.lt.u32 fits, %0, %1;\n\t"
        "mov.u32 now, %%clock;\n\t"
        "@fits st.global.v2.u32 [%2], {now, %3};\n\t}" ::"r"(marks_made),
        "r"(trace_capacity), "l"(trace_records + marks_made), "r"(word)
        : "memory");
    ++marks_made;
  }

  /// A mark in a consumer's main loop.
  __device__ __forceinline__ void mark_step(Mark what, int ring = 0, uint32 number = 0) const {
    if constexpr (Marked == Level::steps) mark(what, ring, number);
  }

  /// After the role's last mark.
  __device__ __forceinline__ void finish_trace(const Sheet& sheet, int strip) const {
    if (trace_capacity == 0) return;
    Strip& header = sheet.strips[index_of(sheet, strip)];
    header.end_clock = clock64();
    header.end_ns = timer_ns();
    header.marks = marks_made;
  }
};

}  // namespace warploom::trace
