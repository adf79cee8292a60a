// Rows in and out of float32 scratch: conversion, zero padding, transposition. Compiled once per target.
#if defined(WARPLOOM_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLOOM_CPU_VECTORS_INL_H_
#undef WARPLOOM_CPU_VECTORS_INL_H_
#else
#define WARPLOOM_CPU_VECTORS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "cpu/plan.h"

HWY_BEFORE_NAMESPACE();
namespace warploom::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using I = hn::RebindToSigned<F>;
using U = hn::RebindToUnsigned<F>;
using H = hn::Rebind<uint16_t, F>;  // as many 16-bit lanes
using Vec = hn::Vec<F>;
using IntVec = hn::Vec<I>;
using BitVec = hn::Vec<U>;

constexpr int kLanes = static_cast<int>(hn::MaxLanes(F()));
static_assert(16 % kLanes == 0, "scratch rows are padded to 16 floats");

HWY_INLINE int vectors_of(int64_t values) {
  return static_cast<int>((values + kLanes - 1) / kLanes);
}

// 16- and 8-bit types go through integers: exact on every target, subnormals and NaN included.

HWY_INLINE Vec from_half(BitVec bits) {
  const U u;
  const F f;
  const BitVec magnitude = hn::And(bits, hn::Set(u, 0x7fffu));
  const Vec scaled = hn::Mul(hn::BitCast(f, hn::ShiftLeft<13>(magnitude)), hn::Set(f, 0x1p112f));
  const auto special = hn::Gt(magnitude, hn::Set(u, 0x7bffu));  // infinite or NaN
  const BitVec exponent = hn::IfThenElseZero(special, hn::Set(u, 0x7f800000u));
  const BitVec sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(u, 0x8000u)));
  return hn::BitCast(f, hn::Or(hn::Or(hn::BitCast(u, scaled), exponent), sign));
}

/// OCP FP8: no infinities, NaN is all ones after the sign.
HWY_INLINE Vec from_e4m3(BitVec bits) {
  const U u;
  const F f;
  const BitVec magnitude = hn::And(bits, hn::Set(u, 0x7fu));
  const Vec scaled = hn::Mul(hn::BitCast(f, hn::ShiftLeft<20>(magnitude)), hn::Set(f, 0x1p120f));
  const BitVec nan = hn::IfThenElseZero(hn::Eq(magnitude, hn::Set(u, 0x7fu)), hn::Set(u, 0x7fc00000u));
  const BitVec sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(u, 0x80u)));
  return hn::BitCast(f, hn::Or(hn::Or(hn::BitCast(u, scaled), nan), sign));
}

HWY_INLINE BitVec to_half(Vec value) {
  const U u;
  const F f;
  const BitVec bits = hn::BitCast(u, value);
  const BitVec magnitude = hn::And(bits, hn::Set(u, 0x7fffffffu));
  const BitVec odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(u, 1u));
  // Normal: the exponent's bias moves from 127 to 15 and 13 bits are rounded away.
  BitVec half = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(u, 0xc8000fffu)), odd));
  // Subnormal: adding 0.5 makes the hardware round at the place of the last bit.
  const Vec shifted = hn::Add(hn::BitCast(f, magnitude), hn::Set(f, 0.5f));
  const BitVec subnormal = hn::Sub(hn::BitCast(u, shifted), hn::BitCast(u, hn::Set(f, 0.5f)));
  half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(u, 0x38800000u)), subnormal, half);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(u, 0x477fffffu)), hn::Set(u, 0x7c00u), half);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(u, 0x7f800000u)), hn::Set(u, 0x7e00u), half);
  return hn::Or(half, hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 0x8000u)));
}

HWY_INLINE BitVec to_bfloat(Vec value) {
  const U u;
  const BitVec bits = hn::BitCast(u, value);
  const BitVec odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1u));
  const BitVec rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(u, 0x7fffu)), odd));
  const auto nan = hn::Gt(hn::And(bits, hn::Set(u, 0x7fffffffu)), hn::Set(u, 0x7f800000u));
  return hn::IfThenElse(nan, hn::Or(hn::ShiftRight<16>(bits), hn::Set(u, 0x40u)), rounded);
}

HWY_INLINE Vec load_vector(const uint16_t* source, uint32_t dtype) {
  const BitVec bits = hn::PromoteTo(U(), hn::LoadU(H(), source));
  return dtype == WARPLOOM_BFLOAT16 ? hn::BitCast(F(), hn::ShiftLeft<16>(bits)) : from_half(bits);
}

/// float8_e4m3.
HWY_INLINE Vec load_vector(const uint8_t* source, uint32_t) {
  return from_e4m3(hn::PromoteTo(U(), hn::LoadU(hn::Rebind<uint8_t, F>(), source)));
}

HWY_INLINE void store_vector(Vec value, uint16_t* target, uint32_t dtype) {
  const BitVec bits = dtype == WARPLOOM_BFLOAT16 ? to_bfloat(value) : to_half(value);
  hn::StoreU(hn::DemoteTo(H(), hn::BitCast(I(), bits)), H(), target);
}

/// Of 16- and 8-bit types.
template <typename Bits>
HWY_INLINE void load_narrow_row(const Bits* source, uint32_t dtype, int count, float* target) {
  const F f;
  const int whole = count / kLanes * kLanes;
  for (int x = 0; x < whole; x += kLanes) hn::StoreU(load_vector(source + x, dtype), f, target + x);
  if (whole == count) return;
  Bits rest[kLanes] = {};
  std::memcpy(rest, source + whole, static_cast<size_t>(count - whole) * sizeof(Bits));
  hn::StoreU(load_vector(rest, dtype), f, target + whole);
}

/// count values to float32; the rest of the last vector is zeros. Reads nothing past the values.
HWY_NOINLINE void load_row(const void* source, uint32_t dtype, int count, float* target) {
  const F f;
  const int whole = count / kLanes * kLanes;
  if (dtype == WARPLOOM_FLOAT32) {
    const float* from = static_cast<const float*>(source);
    for (int x = 0; x < whole; x += kLanes) hn::StoreU(hn::LoadU(f, from + x), f, target + x);
    if (whole == count) return;
    hn::StoreU(hn::Zero(f), f, target + whole);
    for (int x = whole; x < count; ++x) target[x] = from[x];
    return;
  }
  if (dtype == WARPLOOM_FLOAT8_E4M3) {
    load_narrow_row(static_cast<const uint8_t*>(source), dtype, count, target);
  } else {
    load_narrow_row(static_cast<const uint16_t*>(source), dtype, count, target);
  }
}

/// count values from float32, to nearest even. Writes nothing past them.
HWY_NOINLINE void store_row(const float* source, int count, uint32_t dtype, void* target) {
  const F f;
  const int whole = count / kLanes * kLanes;
  if (dtype == WARPLOOM_FLOAT32) {
    float* to = static_cast<float*>(target);
    for (int x = 0; x < whole; x += kLanes) hn::StoreU(hn::LoadU(f, source + x), f, to + x);
    for (int x = whole; x < count; ++x) to[x] = source[x];
    return;
  }
  auto* to = static_cast<uint16_t*>(target);
  for (int x = 0; x < whole; x += kLanes) store_vector(hn::LoadU(f, source + x), to + x, dtype);
  if (whole == count) return;
  float last[kLanes] = {};
  std::memcpy(last, source + whole, static_cast<size_t>(count - whole) * sizeof(float));
  uint16_t rest[kLanes];
  store_vector(hn::LoadU(f, last), rest, dtype);
  std::memcpy(to + whole, rest, static_cast<size_t>(count - whole) * sizeof(uint16_t));
}

HWY_INLINE void scale_row(float* row, int count, float factor) {
  const F f;
  const Vec by = hn::Set(f, factor);
  for (int x = 0; x < count; x += kLanes) hn::StoreU(hn::Mul(hn::LoadU(f, row + x), by), f, row + x);
}

HWY_INLINE void fill(float* target, int64_t count, float value) {
  for (int64_t x = 0; x < count; ++x) target[x] = value;
}

/// Rows first .. first+count-1 to float32, each `stride` floats from the next. The rows of one head lie apart in
/// memory, where the hardware's prefetcher does not follow.
HWY_INLINE void load_rows(const RowsView& view, int64_t first, int count, int dim, float* target, int64_t stride) {
  constexpr int kAhead = 12, kCacheLine = 64;
  const int bytes = dim * dtype_bytes(view.dtype);
  const auto prefetch = [&](int i) HWY_ATTR {
    for (int x = 0; x < bytes; x += kCacheLine) __builtin_prefetch(view.row(first + i) + x);
  };
  for (int i = 0; i < geometry::min_of(kAhead, count); ++i) prefetch(i);
  for (int i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetch(i + kAhead);
    load_row(view.row(first + i), view.dtype, dim, target + i * stride);
  }
}

/// The 128-bit blocks at source, source + 4 rows, source + 8 rows ... side by side in one vector.
template <class D>
HWY_INLINE hn::Vec<D> blocks_of_rows(D d, const float* source, int64_t stride) {
  constexpr int64_t kBlockLanes = static_cast<int64_t>(hn::MaxLanes(D()));
  if constexpr (kBlockLanes <= 4) {
    return hn::LoadU(d, source);
  } else {
    const hn::Half<D> half;
    const float* upper = source + kBlockLanes / 2 * stride;
    return hn::Combine(d, blocks_of_rows(half, upper, stride), blocks_of_rows(half, source, stride));
  }
}

/// target[c][r] = source[r][c] for c < columns. rows and both strides are multiples of the vector, and source rows are
/// readable up to a multiple of 4 columns, target rows exist up to one.
HWY_NOINLINE void transpose(const float* source, int64_t source_stride, int rows, int columns, float* target,
                            int64_t target_stride) {
  const F f;
  for (int c = 0; c < columns; c += 4) {
    for (int r = 0; r < rows; r += kLanes) {
      const float* from = source + r * source_stride + c;
      // 4x4 blocks, each transposed inside its 128-bit lane.
      const Vec a = blocks_of_rows(f, from, source_stride);
      const Vec b = blocks_of_rows(f, from + source_stride, source_stride);
      const Vec x = blocks_of_rows(f, from + 2 * source_stride, source_stride);
      const Vec y = blocks_of_rows(f, from + 3 * source_stride, source_stride);
      const hn::RepartitionToWide<F> wide;
      const auto ab_low = hn::BitCast(wide, hn::InterleaveLower(f, a, b));
      const auto ab_high = hn::BitCast(wide, hn::InterleaveUpper(f, a, b));
      const auto xy_low = hn::BitCast(wide, hn::InterleaveLower(f, x, y));
      const auto xy_high = hn::BitCast(wide, hn::InterleaveUpper(f, x, y));
      float* to = target + c * target_stride + r;
      hn::StoreU(hn::BitCast(f, hn::InterleaveLower(wide, ab_low, xy_low)), f, to);
      hn::StoreU(hn::BitCast(f, hn::InterleaveUpper(wide, ab_low, xy_low)), f, to + target_stride);
      hn::StoreU(hn::BitCast(f, hn::InterleaveLower(wide, ab_high, xy_high)), f, to + 2 * target_stride);
      hn::StoreU(hn::BitCast(f, hn::InterleaveUpper(wide, ab_high, xy_high)), f, to + 3 * target_stride);
    }
  }
}

}  // namespace
}  // namespace warploom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WARPLOOM_CPU_VECTORS_INL_H_
