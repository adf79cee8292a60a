// The matrix products of all passes: C (+)= A B with B's rows as vectors and A's elements broadcast. Compiled once per
// target.
#if defined(WARPLOOM_CPU_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLOOM_CPU_PRODUCTS_INL_H_
#undef WARPLOOM_CPU_PRODUCTS_INL_H_
#else
#define WARPLOOM_CPU_PRODUCTS_INL_H_
#endif

#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace warploom::cpu::HWY_NAMESPACE {
namespace {

/// How A(row, k) lies in memory: a[row * stride + k] or a[k * stride + row].
enum class Layout { rows, columns };

struct Matrix {
  const float* data;
  int64_t stride;
};

// Accumulators held in registers: 8 x 3 of AVX-512's 32, 4 x 3 of 16 elsewhere.
constexpr int kBlockRows = HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2 ? 4 : 8;
constexpr int kBlockVectors = 3;

template <Layout kLayout, int kRows, int kVectors>
HWY_INLINE void product_block(const float* HWY_RESTRICT a, int64_t a_stride, const float* HWY_RESTRICT b,
                              int64_t b_stride, float* HWY_RESTRICT c, int64_t c_stride, int depth, bool accumulate) {
  const F f;
  Vec sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = accumulate ? hn::LoadU(f, c + r * c_stride + v * kLanes) : hn::Zero(f);
    }
  }
  for (int k = 0; k < depth; ++k) {
    Vec row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(f, b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec factor = hn::Set(f, kLayout == Layout::rows ? a[r * a_stride] : a[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(factor, row[v], sum[r][v]);
    }
    a += kLayout == Layout::rows ? 1 : a_stride;
    b += b_stride;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], f, c + r * c_stride + v * kLanes);
  }
}

template <Layout kLayout, int kVectors>
HWY_NOINLINE void product_panel(Matrix a, Matrix b, float* c, int64_t c_stride, int rows, int depth, bool accumulate) {
  int r = 0;
  const auto a_row = [&](int row) HWY_ATTR { return a.data + (kLayout == Layout::rows ? row * a.stride : row); };
  for (; r + kBlockRows <= rows; r += kBlockRows) {
    product_block<kLayout, kBlockRows, kVectors>(a_row(r), a.stride, b.data, b.stride, c + r * c_stride, c_stride,
                                                 depth, accumulate);
  }
  for (; r + 2 <= rows; r += 2) {
    product_block<kLayout, 2, kVectors>(a_row(r), a.stride, b.data, b.stride, c + r * c_stride, c_stride, depth,
                                        accumulate);
  }
  if (r < rows) {
    product_block<kLayout, 1, kVectors>(a_row(r), a.stride, b.data, b.stride, c + r * c_stride, c_stride, depth,
                                        accumulate);
  }
}

/// C[rows][vectors] (+)= A[rows][depth] B[depth][vectors]. The sum of each element runs over k in order, one fused
/// multiply-add each, so its bits depend on nothing but its own row and column.
template <Layout kLayout>
HWY_INLINE void product(Matrix a, Matrix b, float* c, int64_t c_stride, int rows, int vectors, int depth,
                        bool accumulate) {
  int panels = (vectors + kBlockVectors - 1) / kBlockVectors;
  for (int v = 0; v < vectors; --panels) {
    const int width = (vectors - v + panels - 1) / panels;  // 4 vectors are 2 + 2, not 3 + 1
    const Matrix part = {b.data + v * kLanes, b.stride};
    float* to = c + v * kLanes;
    if (width == 3) product_panel<kLayout, 3>(a, part, to, c_stride, rows, depth, accumulate);
    if (width == 2) product_panel<kLayout, 2>(a, part, to, c_stride, rows, depth, accumulate);
    if (width == 1) product_panel<kLayout, 1>(a, part, to, c_stride, rows, depth, accumulate);
    v += width;
  }
}

}  // namespace
}  // namespace warploom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WARPLOOM_CPU_PRODUCTS_INL_H_
