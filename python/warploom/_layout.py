"""The C ABI's warploom_attention as ``struct`` formats, in the order of include/warploom/warploom.h.

A call is packed piece by piece and joined: pieces that a call does not use are constants. The joined ``bytes`` go to
the library as they are.
"""

from __future__ import annotations

from struct import Struct

ABI_VERSION = 3

HSTU, SOFTMAX = 0, 1
FORWARD, BACKWARD = 0, 1
FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2
CPU, CUDA = 0, 1
NO_BIAS, DENSE_BIAS, PACKED_BIAS, BUCKETED_BIAS = 0, 1, 2, 3
INT32, INT64 = 0, 1
ROWS_AUTO, ROWS_KEY, ROWS_QUERY = 0, 1, 2

HAS_ALPHA = 1 << 0
HAS_DIVISOR = 1 << 1
BIAS_NOT_SCALED = 1 << 2
WINDOW_FROM_HISTORY_END = 1 << 3
DETERMINISTIC = 1 << 4
CHECK_INPUTS = 1 << 5
BIAS_GRAD_PADDED = 1 << 6

UNBOUNDED = 2**63 - 1
FROM_CU_SEQLENS = -1
NOT_GIVEN = -1

VERSIONS = Struct("II")
_HEAD = "IIIIIIiI" + "Q" + "9q"  # versions, op, pass, dtype, device, index, flags; stream; batch .. max_seqlen_k
_TENSOR = "Qqqq"
_LSE = "Qqq"

# head, q, k, v, out, [dout, dq, dk, dv,] lse
TENSORS_FORWARD = Struct(_HEAD + _TENSOR * 4 + f"{4 * Struct(_TENSOR).size}x" + _LSE)
TENSORS_BACKWARD = Struct(_HEAD + _TENSOR * 8 + _LSE)
# cu_seqlens, their dtypes, seqused, for all; left, right, counts, for all; group size; intervals; alpha, softcap,
# divisor
LENGTHS_MASK_SCALARS = Struct("QQIIQQii" + "qqQQiiq" + "Qqq" + "dddQ")
# kind, dtype, rows; values, grad; sizes, strides, grad strides; position; time; timestamps, time_bucket
BIAS = Struct("IIII" + "QQ" + "4q" + "3q" + "3q" + "QQqqq" + "QQqqq" + "QQ")
# text, slope, parameters, values, num_values: of the score and of the mask; num_threads, reserved
TAIL = Struct("QQQQq" + "QQQQq" + "iI")

EMPTY_BIAS = bytes(BIAS.size)
EMPTY_TAIL = bytes(TAIL.size)
NO_FUNCTION = (0, 0, 0, 0, 0)

STRUCT_BYTES = TENSORS_BACKWARD.size + LENGTHS_MASK_SCALARS.size + BIAS.size + TAIL.size
