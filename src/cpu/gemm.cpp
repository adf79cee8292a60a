// Matrix products, OUT = act(alpha scale_a scale_b A B^T + bias) + beta C (docs/gemm.md), on the register-blocked
// kernel that attention uses. A tile of the result takes the rows of A and B in float32, steps of K at a time; B's are
// transposed, as columns of the result are the vector axis.
#include "cpu/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "cpu/functions-inl.h"
#include "cpu/gemm.h"
#include "cpu/products-inl.h"
#include "cpu/scratch.h"
#include "problem/gemm.h"

HWY_BEFORE_NAMESPACE();
namespace warploom::cpu::HWY_NAMESPACE {
namespace {

/// All rows of one matrix of a batch, from a column on.
RowsView view_of(const warploom_matrix& matrix, uint32_t dtype, int64_t rows, int64_t batch, int64_t column) {
  const int64_t bytes = dtype_bytes(dtype);
  const int64_t stride = rows > 1 ? matrix.row_stride : 0;  // a single row's may be anything
  return {static_cast<char*>(matrix.data) + (batch * matrix.batch_stride + column) * bytes, stride * bytes, dtype};
}

/// sums[row][column] = the products along all of K, one chain of multiply-adds each; 0 without any.
void add_products(const warploom_gemm& call, const ProductTile& tile, int vectors, Scratch& scratch, float* sums) {
  float* a = scratch.take(kTileRows * kTileDepth);
  float* b = scratch.take(kTileColumns * kTileDepth);
  float* b_transposed = scratch.take(kTileColumns * kTileDepth);
  const int padded = vectors * kLanes;
  if (call.depth == 0) fill(sums, int64_t{tile.rows} * kTileColumns, 0.0f);
  fill(b + tile.columns * kTileDepth, int64_t{padded - tile.columns} * kTileDepth, 0.0f);
  for (int64_t k = 0; k < call.depth; k += kTileDepth) {
    const int depth = static_cast<int>(std::min<int64_t>(kTileDepth, call.depth - k));
    load_rows(view_of(call.a, call.dtype, call.rows, tile.batch, k), tile.row, tile.rows, depth, a, kTileDepth);
    load_rows(view_of(call.b, call.dtype, call.columns, tile.batch, k), tile.column, tile.columns, depth, b,
              kTileDepth);
    transpose(b, kTileDepth, padded, depth, b_transposed, kTileColumns);
    product<Layout::rows>({a, kTileDepth}, {b_transposed, kTileColumns}, sums, kTileColumns, tile.rows, vectors, depth,
                          k > 0);
  }
}

/// act(scale x + bias) + beta c of a row of sums, in place.
void finish_row(float* sums, int vectors, float scale, const float* bias, bool silu_follows, float beta,
                const float* c) {
  const F f;
  const Vec by = hn::Set(f, scale), c_by = hn::Set(f, beta);
  for (int x = 0; x < vectors * kLanes; x += kLanes) {
    Vec z = hn::MulAdd(hn::LoadU(f, sums + x), by, hn::LoadU(f, bias + x));
    if (silu_follows) z = silu(z);
    if (c != nullptr) z = hn::MulAdd(c_by, hn::LoadU(f, c + x), z);
    hn::StoreU(z, f, sums + x);
  }
}

}  // namespace

void multiply(const warploom_gemm& call, const ProductTile& tile, Scratch& scratch) {
  scratch.restart();
  const int vectors = vectors_of(tile.columns);
  float* sums = scratch.take(kTileRows * kTileColumns);
  float* bias = scratch.take(kTileColumns);
  float* c = call.beta != 0 ? scratch.take(kTileColumns) : nullptr;
  fill(bias, kTileColumns, 0.0f);
  if (call.bias != nullptr) {
    const uint32_t dtype = gemm_bias_dtype(call);
    load_row(static_cast<const char*>(call.bias) + tile.column * dtype_bytes(dtype), dtype, tile.columns, bias);
  }
  add_products(call, tile, vectors, scratch, sums);

  double scale = call.alpha;
  if (call.scale_a != nullptr) scale *= double{*call.scale_a};
  if (call.scale_b != nullptr) scale *= double{*call.scale_b};
  const RowsView out = view_of(call.out, call.out_dtype, call.rows, tile.batch, tile.column);
  for (int row = 0; row < tile.rows; ++row) {
    if (c != nullptr) {
      const RowsView from = view_of(call.c, call.out_dtype, call.rows, tile.batch, tile.column);
      load_row(from.row(tile.row + row), call.out_dtype, tile.columns, c);
    }
    float* of_row = sums + int64_t{row} * kTileColumns;
    finish_row(of_row, vectors, static_cast<float>(scale), bias, call.activation == WARPLOOM_SILU,
               static_cast<float>(call.beta), c);
    store_row(of_row, tile.columns, call.out_dtype, out.row(tile.row + row));
  }
}

}  // namespace warploom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <atomic>
#include <limits>
#include <sstream>

#include "cpu/attention.h"
#include "cpu/targets.h"
#include "cpu/thread_pool.h"

namespace warploom::cpu {
namespace {

/// Floats of a thread's tile: sums, bias, c; A, B, B^T.
constexpr size_t kThreadScratch = Scratch::padded(kTileRows * kTileColumns) + 2 * Scratch::padded(kTileColumns) +
                                  Scratch::padded(kTileRows * kTileDepth) +
                                  2 * Scratch::padded(kTileColumns * kTileDepth);

/// A product of counts; the largest number where nobody has the memory that it would take.
int64_t times(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<int64_t>::max() : result;
}

/// Tiles that threads pick up one after the other.
struct Product {
  const warploom_gemm& call;
  int64_t column_tiles = (call.columns + kTileColumns - 1) / kTileColumns;
  int64_t tiles_of_one = (call.rows + kTileRows - 1) / kTileRows * column_tiles;  // of one product of the batch
  int64_t tiles = times(tiles_of_one, call.batch);
  double multiply_adds = static_cast<double>(call.rows) * static_cast<double>(call.columns) *
                         static_cast<double>(call.depth) * static_cast<double>(call.batch);
  int threads = static_cast<int>(std::clamp<int64_t>(tiles, 1, threads_for(multiply_adds, call.num_threads)));
  const Kernels* kernels = nullptr;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};

  ProductTile tile(int64_t n) const {
    ProductTile result;
    result.batch = n / tiles_of_one;
    result.row = n % tiles_of_one / column_tiles * kTileRows;
    result.column = n % column_tiles * kTileColumns;
    result.rows = static_cast<int>(std::min<int64_t>(kTileRows, call.rows - result.row));
    result.columns = static_cast<int>(std::min<int64_t>(kTileColumns, call.columns - result.column));
    return result;
  }
};

void work(void* context) {
  auto& product = *static_cast<Product*>(context);
  Scratch& scratch = Scratch::of_this_thread();
  if (!scratch.reserve(kThreadScratch)) return;  // others do the work; when none can, `done` tells
  for (int64_t n; (n = product.next.fetch_add(1, std::memory_order_relaxed)) < product.tiles;) {
    product.kernels->multiply(product.call, product.tile(n), scratch);
    product.done.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace

bool add_gemm_kernels(int64_t target, Kernels& kernels) {
#define WARPLOOM_ADD(space) kernels.multiply = space::multiply
  WARPLOOM_FOR_TARGET(target, WARPLOOM_ADD);
#undef WARPLOOM_ADD
}

Status run(const warploom_gemm& call) {
  Product product{call};
  product.kernels = kernels();
  if (product.kernels == nullptr) return no_vectors();
  if (product.tiles == 0) return {};
  run_with_helpers(product.threads, work, &product);
  if (product.done == product.tiles) return {};
  return Status::runtime_error("not enough memory for the scratch buffers of a matrix product; free memory");
}

std::string explain(const warploom_gemm& call) {
  const Product product{call};
  std::ostringstream text;
  text.precision(15);  // counts are printed to the last digit
  text << R"({"backend": "cpu", "operator": "product", "instruction_set": ")" << instruction_set()
       << R"(", "threads": )" << product.threads << R"(, "tile_rows": )" << kTileRows << R"(, "tile_columns": )"
       << kTileColumns << R"(, "tile_depth": )" << kTileDepth << R"(, "work_items": )" << product.tiles
       << R"(, "flops": )" << 2 * product.multiply_adds << R"(, "scratch_bytes_per_thread": )"
       << kThreadScratch * sizeof(float) << R"(, "scratch_bytes": )"
       << kThreadScratch * sizeof(float) * static_cast<size_t>(product.threads) << "}";
  return text.str();
}

}  // namespace warploom::cpu
#endif
