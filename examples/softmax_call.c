/* Softmax attention through the C ABI: one plain structure, filled and run. A dense batch of 2 sequences of 8 rows. */
#include <math.h>
#include <stdio.h>
#include <warploom/warploom.h>

enum { BATCH = 2, LENGTH = 8, HEADS = 2, DIM = 16, SIZE = BATCH * LENGTH * HEADS * DIM };

static float q[SIZE], k[SIZE], v[SIZE], out[SIZE], lse[BATCH * HEADS * LENGTH];

static warploom_tensor tensor(float* data) {
  warploom_tensor result = {0};
  result.data = data;
  result.head_stride = DIM;
  result.row_stride = HEADS * DIM;
  result.batch_stride = LENGTH * HEADS * DIM;
  return result;
}

int main(void) {
  for (int i = 0; i < SIZE; ++i) {
    q[i] = sinf((float)i);
    k[i] = cosf(0.7f * (float)i);
    v[i] = sinf(0.3f * (float)i);
  }

  warploom_attention call;
  warploom_attention_init(&call); /* versions, sizes, defaults */
  call.op = WARPLOOM_SOFTMAX;
  call.batch = BATCH;
  call.heads = call.key_heads = HEADS;
  call.head_dim = call.value_dim = DIM;
  call.max_seqlen_q = call.max_seqlen_k = LENGTH;
  call.total_q = call.total_k = BATCH * LENGTH;
  call.q = tensor(q);
  call.k = tensor(k);
  call.v = tensor(v);
  call.out = tensor(out);
  call.lse = lse;
  call.lse_head_stride = LENGTH;
  call.lse_batch_stride = HEADS * LENGTH;
  call.right = 0; /* causal */

  if (warploom_run(&call) != WARPLOOM_OK) {
    fprintf(stderr, "%s\n", warploom_last_error());
    return 1;
  }
  printf("warploom %s\nout[0][0][0..3] = %g %g %g %g\n", warploom_version(), out[0], out[1], out[2], out[3]);

  /* Errors are values: the message names the argument, its value, the rule and the remedy. */
  call.left = -1;
  if (warploom_run(&call) != WARPLOOM_INVALID_VALUE) return 1;
  printf("a wrong call says: %s\n", warploom_last_error());

  /* The first row sees only itself, so its output is its value. */
  for (int d = 0; d < DIM; ++d)
    if (fabsf(out[d] - v[d]) > 1e-6f) return 1;
  return 0;
}
