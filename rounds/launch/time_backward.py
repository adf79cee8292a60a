"""Backward calls of one build: TFLOP/s (2.5 x forward counted), medians, cuDNN's softmax backward beside them."""
import statistics, sys
import torch, warploom as wl
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

WARM = sys.argv[2:] == ["warm"]

def timed(call, n=24):
    for _ in range(1 if WARM else 3): call()
    torch.cuda.synchronize()
    if WARM: return 1.0
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(n)]
    torch.cuda._sleep(10_000_000)
    for a, b in pairs:
        a.record(); call(); b.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairs)

def case(lengths, D, softmax, H=4):
    total, longest = sum(lengths), max(lengths)
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    q, k, v, dout = (torch.randn(total, H, D, device="cuda").bfloat16() for _ in range(4))
    flops = 2.5 * 2 * sum(n * n for n in lengths) * H * D
    opt = dict(max_seqlen_q=longest, max_seqlen_k=longest)
    if softmax:
        mask = wl.Mask.causal()
        out, lse = wl.softmax_attention(q, k, v, cu, mask=mask, return_lse=True, **opt)
        run = lambda: wl.softmax_attention_backward(dout, q, k, v, out, lse, cu, mask=mask, **opt)
        det = None
    else:
        run = lambda: wl.hstu_attention_backward(dout, q, k, v, cu, divisor=100.0, **opt)
        det = lambda: wl.hstu_attention_backward(dout, q, k, v, cu, divisor=100.0, deterministic=True, **opt)
        a, b = run(), det()
        size = b.dq.float().norm(dim=-1).clamp(min=1e-6)
        error = ((a.dq.float() - b.dq.float()).norm(dim=-1) / size).max().item()
        assert error < 0.05, f"dQ is wrong: {error}"
    return flops / timed(run) / 1e9, (flops / timed(det) / 1e9 if det else 0)

def cudnn(L, B, D, H=4):
    q, k, v = (torch.randn(B, H, L, D, device="cuda").bfloat16().requires_grad_() for _ in range(3))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        g = torch.randn_like(out)
        t = timed(lambda: torch.autograd.grad(out, (q, k, v), g, retain_graph=True), 12)
    return 2.5 * 2 * L * L * B * H * D / t / 1e9

random = torch.Generator().manual_seed(0)
jagged = torch.randint(256, 2049, (64,), generator=random).tolist()
print(sys.argv[1], end=": ")
for D in (64, 128):
    row = []
    for name, lengths, softmax in (("L1024", [1024] * 32, False), ("jagged", jagged, False), ("L4096", [4096] * 8, False), ("soft1024", [1024] * 32, True), ("soft4096", [4096] * 4, True)):
        ours, det = case(lengths, D, softmax)
        row.append(f"{name} {ours:.0f}" + (f" (det {det:.0f})" if det else ""))
    row.append(f"cudnn1024 {cudnn(1024, 32, D):.0f} cudnn4096 {cudnn(4096, 8, D):.0f}")
    print(f"D {D}", ", ".join(row), end=" | ", flush=True)
print()
