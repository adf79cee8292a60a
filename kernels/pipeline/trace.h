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
  __device__ __forceinline__ Pen(const Sheet&, bool = true) {}
  __device__ __forceinline__ void start_trace(int, bool) {}
  __device__ __forceinline__ void mark(Mark, int = 0, uint32 = 0) const {}
  __device__ __forceinline__ void mark_step(Mark, int = 0, uint32 = 0) const {}
  __device__ __forceinline__ void settle_marks(uint32) const {}
  __device__ __forceinline__ void finish_trace(int) const {}
};

/// Whether this CTA records. Roles that have no time to lose have their code twice in a traced kernel, with marks and,
/// with a pen that is off, without: marks that store nothing slow a CTA down as much as those that do.
__device__ __forceinline__ bool records(const Sheet& sheet) {
  return blockIdx.x - sheet.first_cta < sheet.ctas;
}

/// In a traced kernel's CTA that does not record: plays the role, whose pen comes first and then `parts`, without
/// marks.
template <Level Marked, typename Role, typename... Parts>
__device__ __forceinline__ bool played_quietly(const Sheet& sheet, const Parts&... parts) {
  if constexpr (Marked != Level::off) {
    if (!records(sheet)) {
      Role role{{sheet, false}, parts...};
      role.run();
      return true;
    }
  }
  return false;
}

/// Every thread of the role has one and goes through the same instructions without a branch (one between wgmma and its
/// wait would serialise it); only the one that records has room to store. Two registers, since consumers have few.
template <Level Marked>
struct Pen {
  const Sheet& sheet;              ///< the kernel's parameter: read where it is needed
  const bool is_on;                ///< a constant wherever a pen is made
  mutable uint32 record_next = 0;  ///< among all records of the sheet; counts on past the strip's end
  uint32 record_end = 0;           ///< of the strip; 0 for threads that do not record

  __device__ __forceinline__ Pen(const Sheet& to, bool on = true) : sheet(to), is_on(on) {}

  /// Among the CTAs that record.
  __device__ __forceinline__ uint32 cta() const { return blockIdx.x - sheet.first_cta; }
  __device__ __forceinline__ uint32 index_of(int strip) const { return cta() * sheet.strips_of_cta + strip; }
  __device__ static __forceinline__ unsigned long long timer_ns() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  }

  /// Before the role's first mark. `strip`: its number among the CTA's recording warps; `records_here`: in this thread.
  __device__ __forceinline__ void start_trace(int strip, bool records_here) {
    if (!records_here || !records(sheet)) return;
    record_next = index_of(strip) * sheet.capacity;
    record_end = record_next + sheet.capacity;
    Strip& header = sheet.strips[index_of(strip)];
    asm("mov.u32 %0, %%smid;" : "=r"(header.sm));
    header.cta = blockIdx.x;
    header.warp = threadIdx.x / 32;
    header.start_ns = timer_ns();
    header.start_clock = clock64();
  }

  /// From here on the warp does `what`.
  __device__ __forceinline__ void mark(Mark what, int ring = 0, uint32 number = 0) const {
    if (!is_on) return;
    asm volatile(
        "{\n\t.reg .pred fits;\n\t.reg .u32 now;\n\t"
        "setp.lt.u32 fits, %0, %1;\n\t"
        "mov.u32 now, %%clock;\n\t"
        "@fits st.global.v2.u32 [%2], {now, %3};\n\t}" ::"r"(record_next),
        "r"(record_end), "l"(sheet.records + record_next), "r"(word_of(what, ring, number))
        : "memory");
    ++record_next;
  }

  /// A mark in a consumer's main loop.
  __device__ __forceinline__ void mark_step(Mark what, int ring = 0, uint32 number = 0) const {
    if constexpr (Marked == Level::steps) mark(what, ring, number);
  }

  /// Between bar.sync and the mark that ends the wait for it: a warp goes past bar.sync with what needs nothing from
  /// memory, as reading the clock, and is held back by the first load only. `mbarrier`: any of the kernel's.
  __device__ __forceinline__ void settle_marks(uint32 mbarrier) const {
    if (!is_on) return;
    constexpr uint32 kNoState = 0x5EC0DE5A;  // of no mbarrier; the loop makes ptxas read the clock behind it
    for (uint32 state = kNoState; state == kNoState;)
      asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(state) : "r"(mbarrier) : "memory");
  }

  /// After the role's last mark.
  __device__ __forceinline__ void finish_trace(int strip) const {
    if (record_end == 0) return;
    Strip& header = sheet.strips[index_of(strip)];
    header.end_clock = clock64();
    header.end_ns = timer_ns();
    header.marks = record_next - index_of(strip) * sheet.capacity;
  }
};

}  // namespace warploom::trace
