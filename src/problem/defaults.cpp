// The defaults of a call.
#include <cstring>

#include "warploom/warploom.h"

extern "C" void warploom_attention_init(warploom_attention* call) {
  if (call == nullptr) return;
  std::memset(call, 0, sizeof *call);
  call->abi_version = WARPLOOM_ABI_VERSION;
  call->struct_bytes = sizeof *call;
  call->max_seqlen_q = call->max_seqlen_k = WARPLOOM_FROM_CU_SEQLENS;
  call->seqused_q_all = call->seqused_k_all = -1;
  call->num_contexts_all = call->num_targets_all = -1;
  call->left = call->right = WARPLOOM_UNBOUNDED;
  call->target_group_size = 1;
}
