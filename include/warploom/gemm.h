// Matrix products with what often follows them in one kernel, on Hopper GPUs and on the CPU. Link libwarploom.
//
//   warploom::Status status = warploom::gemm(
//       {.data = a, .rows = m, .columns = k, .row_stride = k}, {.data = w, .rows = n, .columns = k, .row_stride = k},
//       {.data = out, .rows = m, .columns = n, .row_stride = n}, {.bias = bias, .silu = true},
//       {.cuda = on_a_gpu});
#pragma once

#include "warploom/attention.h"
#include "warploom/warploom.h"

namespace warploom {

/// A batch of matrices, in the memory of the device that computes, that somebody else owns. Rows are contiguous;
/// strides are in elements.
struct MatrixView {
  void* data = nullptr;  ///< never written through when the view is an input
  DType dtype = DType::bfloat16;
  std::int64_t rows = 0, columns = 0;
  std::int64_t row_stride = 0;
  std::int64_t batch_stride = 0;  ///< 0: the same matrix for the whole batch (inputs only)
};

struct GemmOptions {
  const void* bias = nullptr;  ///< (N) of a's type; for 8-bit a of out's, or bfloat16 where that is float32
  bool silu = false;
  MatrixView c = {};  ///< added at the end; of out's type, may be out itself
  double alpha = 1;
  double beta = 1;  ///< of c, when there is one
  std::int64_t batch = 1;
  const float* scale_a = nullptr;  ///< of 8-bit a: one value in the device's memory, null for 1
  const float* scale_b = nullptr;
};

/// The C structure of a product, for explain_gemm(). Error: invalid_value for sizes that do not fit.
inline Result<warploom_gemm> gemm_call(const MatrixView& a, const MatrixView& b, const MatrixView& out,
                                       const GemmOptions& options = {}, const Execution& execution = {.cuda = true}) {
  const auto wrong = [](const char* what) { return Status::invalid_value(what); };
  if (a.columns != b.columns) return wrong("a and b differ in columns, along which they are multiplied");
  if (out.rows != a.rows || out.columns != b.rows) return wrong("out is not as tall as a and as wide as b has rows");
  if (a.dtype != b.dtype) return wrong("a and b differ in dtype");
  const bool added = options.c.data != nullptr;
  if (added && (options.c.rows != out.rows || options.c.columns != out.columns || options.c.dtype != out.dtype)) {
    return wrong("c differs from out in size or dtype");
  }
  warploom_gemm call;
  warploom_gemm_init(&call);
  call.dtype = static_cast<std::uint32_t>(a.dtype);
  call.out_dtype = static_cast<std::uint32_t>(out.dtype);
  call.device = execution.cuda ? WARPLOOM_CUDA : WARPLOOM_CPU;
  call.device_index = execution.device_index;
  call.num_threads = execution.num_threads;
  call.stream = execution.stream;
  call.activation = options.silu ? WARPLOOM_SILU : WARPLOOM_NO_ACTIVATION;
  call.batch = options.batch;
  call.rows = a.rows;
  call.columns = b.rows;
  call.depth = a.columns;
  call.a = {a.data, a.batch_stride, a.row_stride};
  call.b = {b.data, b.batch_stride, b.row_stride};
  call.out = {out.data, out.batch_stride, out.row_stride};
  if (added) call.c = {options.c.data, options.c.batch_stride, options.c.row_stride};
  call.bias = options.bias;
  call.alpha = options.alpha;
  call.beta = added ? options.beta : 0;
  call.scale_a = options.scale_a;
  call.scale_b = options.scale_b;
  return call;
}

/// out = act(alpha scale_a scale_b a b^T + bias) + beta c: a (M, K), b (N, K), out (M, N). Sums are float32. a and b
/// are float16, bfloat16 or float8_e4m3; out is float16, bfloat16 or float32. On a GPU it is queued on the stream, on
/// the CPU (execution.cuda = false) it is there when the call returns; everything else is the same, alignment too.
inline Status gemm(const MatrixView& a, const MatrixView& b, const MatrixView& out, const GemmOptions& options = {},
                   const Execution& execution = {.cuda = true}) {
  const Result<warploom_gemm> call = gemm_call(a, b, out, options, execution);
  return call.ok() ? detail::status_of(warploom_gemm_run(&call.value())) : call.status();
}

/// What the product would run, as JSON.
inline Result<std::string> explain(const warploom_gemm& call) {
  char* text = nullptr;
  if (Status status = detail::status_of(warploom_gemm_explain(&call, &text)); !status.ok()) return status;
  std::string result(text);
  warploom_free(text);
  return result;
}

}  // namespace warploom
