#include "problem/aliases.h"

#include <cstdint>
#include <initializer_list>

#include "problem/extents.h"
#include "problem/gemm.h"
#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom {
namespace {

/// The memory of one array: from its lowest to its highest element.
struct Span {
  const char* name = "";
  uintptr_t first = 0;           ///< element 0
  uintptr_t begin = 0, end = 0;  ///< equal: nothing
  bool gapless = false;
};

Span span_of(const char* name, const void* data, int64_t element_bytes, std::initializer_list<Axis> axes) {
  int64_t lowest = 0, highest = 0, elements = 1;
  for (const Axis& axis : axes) {
    if (axis.extent <= 0 || data == nullptr) return {};
    const int64_t reach = (axis.extent - 1) * axis.stride;
    (reach < 0 ? lowest : highest) += reach;
    if (axis.stride != 0) elements *= axis.extent;
  }
  const auto at = [&](int64_t element) {
    return reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(element * element_bytes);
  };
  return {name, at(0), at(lowest), at(highest + 1), elements > highest - lowest};
}

bool overlap(const Span& a, const Span& b) {
  if (a.begin >= b.end || b.begin >= a.end) return false;
  return (a.gapless && b.gapless) || a.first == b.first;
}

/// `written` beside every other array of the call, and beside each other.
Status check(std::initializer_list<Span> written, std::initializer_list<Span> read) {
  for (const Span& one : written) {
    for (const Span& other : read) {
      if (!overlap(one, other)) continue;
      return Status::invalid_value(message(one.name, " is written and shares memory with ", other.name,
                                           ", which is still read then; pass memory of its own for it"));
    }
    for (const Span& other : written) {
      if (&other == &one || !overlap(one, other)) continue;
      return Status::invalid_value(
          message(one.name, " and ", other.name, " are both written and share memory; pass memory for each"));
    }
  }
  return {};
}

}  // namespace

Status check_aliases(const warploom_attention& call) {
  const bool dense = is_dense(call), softmax = call.op == WARPLOOM_SOFTMAX;
  const int64_t bytes = dtype_bytes(call.dtype);
  const auto tensor = [&](const char* name, const warploom_tensor& array, int64_t rows, int64_t length, int64_t heads,
                          int64_t dim) {
    return span_of(name, array.data, bytes,
                   {dense ? Axis{call.batch, array.batch_stride} : Axis{1, 0},
                    {dense ? length : rows, array.row_stride},
                    {heads, array.head_stride},
                    {dim, 1}});
  };
  const auto of_queries = [&](const char* name, const warploom_tensor& array, int64_t dim) {
    return tensor(name, array, call.total_q, call.max_seqlen_q, call.heads, dim);
  };
  const auto of_keys = [&](const char* name, const warploom_tensor& array, int64_t dim) {
    return tensor(name, array, call.total_k, call.max_seqlen_k, call.key_heads, dim);
  };
  const Span q = of_queries("q", call.q, call.head_dim), k = of_keys("k", call.k, call.head_dim),
             v = of_keys("v", call.v, call.value_dim), out = of_queries("out", call.out, call.value_dim);
  const Span lse = span_of("lse", softmax ? call.lse : nullptr, sizeof(float),
                           {dense ? Axis{call.batch, call.lse_batch_stride} : Axis{1, 0},
                            {call.heads, call.lse_head_stride},
                            {dense ? call.max_seqlen_q : call.total_q, 1}});
  const warploom_bias& b = call.bias;
  const bool stored = b.kind == WARPLOOM_DENSE_BIAS || b.kind == WARPLOOM_PACKED_BIAS;
  const bool rows = b.kind == WARPLOOM_DENSE_BIAS;
  const auto bias_span = [&](const char* name, const void* data, int64_t batch, int64_t head, int64_t row) {
    return span_of(name, stored ? data : nullptr, dtype_bytes(b.dtype),
                   {{rows ? b.batch : 1, batch}, {b.heads, head}, {rows ? b.num_rows : 1, row}, {b.num_columns, 1}});
  };
  const Span bias = bias_span("bias", b.values, b.batch_stride, b.head_stride, b.row_stride);
  if (call.pass == WARPLOOM_FORWARD) return check({out, lse}, {q, k, v, bias});
  return check({of_queries("dq", call.dq, call.head_dim), of_keys("dk", call.dk, call.head_dim),
                of_keys("dv", call.dv, call.value_dim),
                bias_span("the gradient of bias", b.grad, b.grad_batch_stride, b.grad_head_stride, b.grad_row_stride)},
               {q, k, v, bias, of_queries("dout", call.dout, call.value_dim), softmax ? out : Span(), lse});
}

Status check_aliases(const warploom_gemm& call) {
  const auto matrix = [&](const char* name, const warploom_matrix& array, int64_t rows, int64_t columns,
                          uint32_t dtype) {
    return span_of(name, array.data, gemm_value_bytes(dtype),
                   {{call.batch, array.batch_stride}, {rows, array.row_stride}, {columns, 1}});
  };
  const bool in_place = call.c.data == call.out.data && (call.rows <= 1 || call.c.row_stride == call.out.row_stride) &&
                        (call.batch <= 1 || call.c.batch_stride == call.out.batch_stride);
  return check({matrix("out", call.out, call.rows, call.columns, call.out_dtype)},
               {matrix("a", call.a, call.rows, call.depth, call.dtype),
                matrix("b", call.b, call.columns, call.depth, call.dtype),
                in_place ? Span() : matrix("c", call.c, call.rows, call.columns, call.out_dtype),
                span_of("bias", call.bias, gemm_value_bytes(gemm_bias_dtype(call)), {{call.columns, 1}})});
}

}  // namespace warploom
