/* Warploom's C ABI: one call is one plain structure.
 *
 * A caller zeroes a warploom_attention, sets abi_version and struct_bytes, fills in what its call needs and passes it
 * to warploom_run. Every function returns a status (WARPLOOM_OK or an error); the message of the calling thread's last
 * error is warploom_last_error(). No exception crosses this boundary and nothing is written when an error is found in
 * the arguments. All counts are elements, never bytes, unless a name says so. A result has memory of its own: one that
 * shares it with an input or with another result is refused where that can be told from addresses and strides.
 *
 * The mathematics is docs/attention.md; its symbols are used here.
 */
#ifndef WARPLOOM_WARPLOOM_H
#define WARPLOOM_WARPLOOM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define WARPLOOM_API __attribute__((visibility("default")))
#else
#define WARPLOOM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a structure of this file changes. A library and a caller that differ refuse each other. */
#define WARPLOOM_ABI_VERSION 3u

/* Status codes. */
#define WARPLOOM_OK 0
#define WARPLOOM_INVALID_VALUE 1 /* a value or a shape breaks a rule */
#define WARPLOOM_INVALID_TYPE 2  /* a dtype or a kind of argument is not taken */
#define WARPLOOM_RUNTIME_ERROR 3 /* device, driver, compiler, memory */

enum { WARPLOOM_HSTU = 0, WARPLOOM_SOFTMAX = 1 };                           /* op */
enum { WARPLOOM_FORWARD = 0, WARPLOOM_BACKWARD = 1 };                       /* pass */
enum { WARPLOOM_FLOAT32 = 0, WARPLOOM_FLOAT16 = 1, WARPLOOM_BFLOAT16 = 2 }; /* dtype */
enum { WARPLOOM_FLOAT8_E4M3 = 3 };               /* dtype of a product's a and b only: OCP FP8, no infinities */
enum { WARPLOOM_CPU = 0, WARPLOOM_CUDA = 1 };    /* device */
enum { WARPLOOM_INT32 = 0, WARPLOOM_INT64 = 1 }; /* cu_seqlens_dtype */
enum {                                           /* bias.kind */
       WARPLOOM_NO_BIAS = 0,
       WARPLOOM_DENSE_BIAS = 1,
       WARPLOOM_PACKED_BIAS = 2,
       WARPLOOM_BUCKETED_BIAS = 3
};
enum { WARPLOOM_ROWS_AUTO = 0, WARPLOOM_ROWS_KEY = 1, WARPLOOM_ROWS_QUERY = 2 }; /* bias.rows */

/* flags; an unknown bit is an error */
#define WARPLOOM_HAS_ALPHA (1u << 0)               /* alpha is given; else 1/sqrt(head_dim) */
#define WARPLOOM_HAS_DIVISOR (1u << 1)             /* divisor is given; else divisor_rows, else max_seqlen_q */
#define WARPLOOM_BIAS_NOT_SCALED (1u << 2)         /* HSTU: Z = alpha Q K^T + R instead of alpha (Q K^T + R) */
#define WARPLOOM_WINDOW_FROM_HISTORY_END (1u << 3) /* a target row's window is measured from the end of the history */
#define WARPLOOM_DETERMINISTIC (1u << 4)           /* gradients bitwise repeatable */
#define WARPLOOM_CHECK_INPUTS (1u << 5)            /* GPU: check the values of lengths and counts too (synchronises) */
#define WARPLOOM_BIAS_GRAD_PADDED (1u << 6)        /* DENSE: what is written of bias.grad may end at a multiple of 16 */
                                                   /* bytes behind the end of each row; all of that is the caller's */

/* left and right: no limit on that side */
#define WARPLOOM_UNBOUNDED INT64_MAX
/* max_seqlen_q, max_seqlen_k of a jagged batch: take the longest slot of cu_seqlens (GPU: synchronises) */
#define WARPLOOM_FROM_CU_SEQLENS (-1)

/* A (rows, heads, dim) tensor; the last dimension is contiguous, every other stride (in elements) is free.
 * Row i of sequence b is data + (cu_seqlens[b] + i) * row_stride in a jagged batch and
 * data + b * batch_stride + i * row_stride in a dense one. A null data pointer: absent. */
typedef struct warploom_tensor {
  void* data;
  int64_t batch_stride;
  int64_t row_stride;
  int64_t head_stride;
} warploom_tensor;

/* The relative attention bias R (docs/attention.md, section 5). Unused fields are 0.
 *
 * DENSE     values (batch, heads, num_rows, num_columns) of type dtype, strides below (0 = broadcast), last contiguous.
 *           batch and heads: 1 or the problem's. num_columns = max_seqlen_k. rows: KEY needs num_rows = max_seqlen_k,
 *           QUERY max_seqlen_q; AUTO decides by num_rows (KEY wins).
 * PACKED    values (heads, num_columns): for each sequence rows_b rows of pitch_b elements one after the other,
 *           pitch_b = slot length in keys rounded up to 16 bytes; num_columns = the sum; head_stride; rows KEY or
 * QUERY. BUCKETED  position (position_heads, num_positions) and/or time (time_heads, num_times), float32; timestamps
 * int64, one for each key row (total_k); time_bucket num_times - 1 increasing thresholds or null for the default.
 *
 * Gradients (backward): shaped like the values, grad_* strides, same dtype; null: not wanted. They are overwritten. */
typedef struct warploom_bias {
  uint32_t kind;
  uint32_t dtype;
  uint32_t rows;
  uint32_t reserved;
  const void* values;
  void* grad;
  int64_t batch;
  int64_t heads;
  int64_t num_rows;
  int64_t num_columns;
  int64_t batch_stride;
  int64_t head_stride;
  int64_t row_stride;
  int64_t grad_batch_stride;
  int64_t grad_head_stride;
  int64_t grad_row_stride;
  const float* position;
  float* position_grad; /* contiguous (position_heads, num_positions) */
  int64_t position_heads;
  int64_t num_positions;
  int64_t position_head_stride;
  const float* time;
  float* time_grad; /* contiguous (time_heads, num_times) */
  int64_t time_heads;
  int64_t num_times;
  int64_t time_head_stride;
  const int64_t* timestamps;
  const int64_t* time_bucket;
} warploom_bias;

/* A function that the caller writes (docs/score-functions.md), in memory of the host that is read during the call only.
 * What is derived from a text is kept for the process, kernels for a GPU in the cache. A null text: none. */
typedef struct warploom_function {
  const char* text;       /* score: "z * sigmoid(beta * z)"; mask: "[0, nc), [r - w, r + 1)" */
  const char* slope;      /* score: d text / d z; null: derived */
  const char* parameters; /* names separated by commas, "beta"; null: none */
  const double* values;   /* one for each name */
  int64_t num_values;
} warploom_function;

/* One call. All pointers are of the device that `device` names, except those marked host. */
typedef struct warploom_attention {
  uint32_t abi_version;  /* WARPLOOM_ABI_VERSION */
  uint32_t struct_bytes; /* sizeof(warploom_attention) */
  uint32_t op;
  uint32_t pass;
  uint32_t dtype; /* of q, k, v, out, dout, dq, dk, dv */
  uint32_t device;
  int32_t device_index; /* CUDA: ordinal */
  uint32_t flags;
  void* stream; /* CUDA: a CUstream; null is the default stream */

  int64_t batch;     /* B */
  int64_t heads;     /* H, of q */
  int64_t key_heads; /* Hkv, divides H */
  int64_t head_dim;  /* D */
  int64_t value_dim; /* Dv */
  int64_t total_q;   /* Tq: rows of q; dense: B * Lq */
  int64_t total_k;
  int64_t max_seqlen_q; /* dense: Lq; jagged: at least the longest slot, or WARPLOOM_FROM_CU_SEQLENS */
  int64_t max_seqlen_k;

  warploom_tensor q, k, v;    /* (Tq, H, D) (Tk, Hkv, D) (Tk, Hkv, Dv) */
  warploom_tensor out;        /* (Tq, H, Dv): written by forward, read by softmax backward */
  warploom_tensor dout;       /* backward: (Tq, H, Dv) */
  warploom_tensor dq, dk, dv; /* backward: like q, k, v; overwritten */
  float* lse;                 /* softmax: (H, Tq) jagged, (B, H, Lq) dense; optional in forward, needed by backward */
  int64_t lse_batch_stride;   /* dense only */
  int64_t lse_head_stride;

  const void* cu_seqlens_q; /* B + 1; null with cu_seqlens_k null: a dense batch */
  const void* cu_seqlens_k; /* null: the same as cu_seqlens_q */
  uint32_t cu_seqlens_q_dtype;
  uint32_t cu_seqlens_k_dtype;
  const int32_t* seqused_q; /* (B) or null */
  const int32_t* seqused_k;
  int32_t seqused_q_all; /* used when the pointer is null: the same for every sequence; negative: not given */
  int32_t seqused_k_all;

  int64_t left;                /* >= 0 or WARPLOOM_UNBOUNDED */
  int64_t right;               /* >= 0 or WARPLOOM_UNBOUNDED */
  const int32_t* num_contexts; /* (B) or null */
  const int32_t* num_targets;
  int32_t num_contexts_all; /* the pointer null: of every sequence with at least one key; negative: not given */
  int32_t num_targets_all;
  int64_t target_group_size; /* >= 1 */
  const int32_t* intervals;  /* (interval_heads, Tq, num_intervals, 2) contiguous; null is fine when it is empty */
  int64_t interval_heads;    /* 1 or H: this is an interval mask, which replaces every rule above; 0: it is none */
  int64_t num_intervals;

  double alpha;
  double softcap; /* softmax; 0: off */
  double divisor;
  const float* divisor_rows; /* (Tq) or null */
  warploom_bias bias;

  warploom_function score;         /* HSTU: P = score(Z) instead of silu(Z) */
  warploom_function mask_function; /* the intervals that a row sees, which replace every rule of the mask above; its
                                      num_contexts and num_targets are what the function reads as nc and nt */

  int32_t num_threads; /* CPU: 0 = warploom_set_num_threads' value */
  uint32_t reserved;
} warploom_attention;

enum { WARPLOOM_NO_ACTIVATION = 0, WARPLOOM_SILU = 1 }; /* activation */

/* A batch of matrices whose rows are contiguous; strides in elements. A null data pointer: absent. */
typedef struct warploom_matrix {
  void* data;
  int64_t batch_stride; /* 0: the same matrix for the whole batch (inputs only) */
  int64_t row_stride;
} warploom_matrix;

/* OUT = act(alpha scale_a scale_b A B^T + bias) + beta C for every matrix of a batch (docs/gemm.md). A caller zeroes
 * it, sets abi_version, struct_bytes and what its product needs. */
typedef struct warploom_gemm {
  uint32_t abi_version;  /* WARPLOOM_ABI_VERSION */
  uint32_t struct_bytes; /* sizeof(warploom_gemm) */
  uint32_t dtype;        /* of a and b: FLOAT16, BFLOAT16 or FLOAT8_E4M3 */
  uint32_t out_dtype;    /* of c and out: FLOAT16, BFLOAT16 or FLOAT32 */
  uint32_t device;       /* WARPLOOM_CPU or WARPLOOM_CUDA; the same rules, alignment too */
  int32_t device_index;  /* CUDA: ordinal */
  uint32_t activation;
  int32_t num_threads; /* CPU: 0 = warploom_set_num_threads' value */
  void* stream;        /* CUDA: a CUstream; null is the default stream */

  int64_t batch;   /* 1: a single product */
  int64_t rows;    /* M: of a, c and out */
  int64_t columns; /* N: rows of b, columns of c and out */
  int64_t depth;   /* K: columns of a and b; 0: the product is 0 */

  warploom_matrix a, b; /* (M, K) (N, K): addresses and strides are multiples of 16 bytes */
  warploom_matrix c;    /* (M, N) or absent; may be out itself */
  warploom_matrix out;  /* (M, N): pairs of values are aligned */
  const void* bias;     /* (N), 16-byte aligned, or null; of a's dtype, for FLOAT8_E4M3 of out's, or BFLOAT16 where
                         * that is FLOAT32 */
  double alpha;
  double beta;          /* of c */
  const float* scale_a; /* one value on the device, or null for 1; with FLOAT8_E4M3 only */
  const float* scale_b;
} warploom_gemm;

/* "0.1.0" */
WARPLOOM_API const char* warploom_version(void);
/* WARPLOOM_ABI_VERSION of the library. */
WARPLOOM_API uint32_t warploom_abi_version(void);
/* The message of the calling thread's last error; "" when there was none. Valid until its next call. */
WARPLOOM_API const char* warploom_last_error(void);

/* Fills *call with zeros and the defaults: version, sizes, absent lengths and counts (-1), unbounded window, group
 * size 1. Null: nothing to do. */
WARPLOOM_API void warploom_attention_init(warploom_attention* call);
/* Checks a call without running it. */
WARPLOOM_API int warploom_validate(const warploom_attention* call);
/* Checks and runs a call: on the CPU it returns when the result is there, on a GPU when the work is queued on the
 * stream. */
WARPLOOM_API int warploom_run(const warploom_attention* call);
/* GPU: compiles and loads what the call needs (forward and backward) without running it. CPU: nothing to do. */
WARPLOOM_API int warploom_warmup(const warploom_attention* call);
/* What warploom_run would do, as JSON (docs/cli.md, explain). Text is released by warploom_free. */
WARPLOOM_API int warploom_explain(const warploom_attention* call, char** text);
/* What a score function is taken for, as JSON: {"score", "slope", "derived": bool, "parameters": [names]}; an error
 * marks the place in the text. Text is released by warploom_free. */
WARPLOOM_API int warploom_describe_score(const warploom_function* function, char** text);
/* The same of a mask function: {"mask", "intervals": n, "by_head": bool, "parameters": [names]}. */
WARPLOOM_API int warploom_describe_mask(const warploom_function* function, char** text);
/* A score function's values and slopes (null: not wanted) at `count` points, as the CPU back end computes them. */
WARPLOOM_API int warploom_evaluate_score(const warploom_function* function, const float* z, int64_t count,
                                         float* values, float* slopes);
/* Fills *call with zeros and the defaults: version, sizes, WARPLOOM_CUDA, one product, alpha = 1. */
WARPLOOM_API void warploom_gemm_init(warploom_gemm* call);
/* Checks and runs a product: on the CPU it returns when the result is there, on a GPU, which must be of compute
 * capability 9.0, when the work is queued on the stream. */
WARPLOOM_API int warploom_gemm_run(const warploom_gemm* call);
/* What warploom_gemm_run would do, as JSON (docs/cli.md, explain): for a GPU every tile considered, with its predicted
 * time. Without a GPU of that index it is told for an H200. Text is released by warploom_free. */
WARPLOOM_API int warploom_gemm_explain(const warploom_gemm* call, char** text);
/* Devices that can be used, as a JSON array of {"name", "kind": "cpu"|"cuda", "architecture", ...}. */
WARPLOOM_API int warploom_devices(char** text);
/* What was found on this machine: libraries searched and why one was refused, cache, settings, versions; JSON. */
WARPLOOM_API int warploom_info(char** text);
/* Releases a text returned by this library. */
WARPLOOM_API void warploom_free(char* text);

/* Threads of the CPU back end: 0 = as many as the process may run on. Results never depend on it. */
WARPLOOM_API int warploom_set_num_threads(int32_t count);
WARPLOOM_API int32_t warploom_get_num_threads(void);
/* A folder that is searched for NVRTC before the usual places (used by the Python package for its own environment). */
WARPLOOM_API int warploom_add_library_directory(const char* path);

#ifdef __cplusplus
}
#endif

#endif
