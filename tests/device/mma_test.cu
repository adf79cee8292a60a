// One tensor-core product, operands placed by geometry/fragment.h; and S turned into the operand of P V.
#include "geometry/fragment.h"
#include "ptx/mma.h"

namespace {

using warploom::geometry::a_element;
using warploom::geometry::b_element;
using warploom::geometry::c_element;
using warploom::geometry::Element;
using warploom::ptx::uint32;

/// Two neighbours of a row-major matrix of 16-bit values as a register.
__device__ uint32 pair_at(const unsigned short* matrix, int columns, Element e) {
  return matrix[e.row * columns + e.column] | static_cast<uint32>(matrix[e.row * columns + e.column + 1]) << 16;
}

/// D (16, 8) = A (16, 16) B (8, 16)^T + C (16, 8).
template <typename T>
__device__ void product(const unsigned short* a, const unsigned short* b, const float* c, float* d) {
  const int lane = threadIdx.x;
  uint32 a_registers[4];
  for (int i = 0; i < 4; ++i) a_registers[i] = pair_at(a, 16, a_element(lane, i));
  float sum[4];
  for (int i = 0; i < 4; ++i) sum[i] = c[c_element(lane, i).row * 8 + c_element(lane, i).column];
  warploom::ptx::mma_m16n8k16<T>(sum, a_registers, pair_at(b, 16, b_element(lane, 0)),
                                 pair_at(b, 16, b_element(lane, 1)));
  for (int i = 0; i < 4; ++i) d[c_element(lane, i).row * 8 + c_element(lane, i).column] = sum[i];
}

/// O (16, 8) = round(A (16, 16) B (16, 16)^T) V (8, 16)^T: the accumulators of two n-tiles are the next A operand.
template <typename T>
__device__ void chained(const unsigned short* a, const unsigned short* b, const unsigned short* v, float* o) {
  const int lane = threadIdx.x;
  uint32 a_registers[4];
  for (int i = 0; i < 4; ++i) a_registers[i] = pair_at(a, 16, a_element(lane, i));
  float scores[2][4] = {};
  for (int n = 0; n < 2; ++n) {
    const unsigned short* block = b + n * 8 * 16;
    warploom::ptx::mma_m16n8k16<T>(scores[n], a_registers, pair_at(block, 16, b_element(lane, 0)),
                                   pair_at(block, 16, b_element(lane, 1)));
  }
  uint32 p[4];
  for (int i = 0; i < 4; ++i) p[i] = warploom::ptx::pack<T>(scores[i / 2][i % 2 * 2], scores[i / 2][i % 2 * 2 + 1]);
  float sum[4] = {};
  warploom::ptx::mma_m16n8k16<T>(sum, p, pair_at(v, 16, b_element(lane, 0)), pair_at(v, 16, b_element(lane, 1)));
  for (int i = 0; i < 4; ++i) o[c_element(lane, i).row * 8 + c_element(lane, i).column] = sum[i];
}

}  // namespace

using U16 = const unsigned short*;

extern "C" __global__ void product_fp16(U16 a, U16 b, const float* c, float* d) {
  product<warploom::ptx::Float16>(a, b, c, d);
}
extern "C" __global__ void product_bf16(U16 a, U16 b, const float* c, float* d) {
  product<warploom::ptx::Bfloat16>(a, b, c, d);
}
extern "C" __global__ void chained_fp16(U16 a, U16 b, U16 v, float* o) {
  chained<warploom::ptx::Float16>(a, b, v, o);
}
extern "C" __global__ void chained_bf16(U16 a, U16 b, U16 v, float* o) {
  chained<warploom::ptx::Bfloat16>(a, b, v, o);
}
