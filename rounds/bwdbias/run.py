"""TFLOP/s of whole backward calls (2.5 x forward), medians of 5: default kernels and mma.sync, with and without gradient."""
import os, statistics, sys
import torch
import warploom as wl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
small = DEVICE == "cpu"


def lengths(kind):
    if kind == "jagged":
        n = torch.randint(256, 2049, (64,), generator=torch.Generator().manual_seed(0))
    else:
        n = torch.full((8,), int(kind))
    return torch.clamp(n[:2], max=9) if small else n


def run(kind, D, dtype, form):
    n = lengths(kind)
    cu = torch.cat((torch.zeros(1, dtype=torch.long), n.cumsum(0))).int().to(DEVICE)
    T, L, H = int(n.sum()), int(n.max()), 4
    make = lambda *s: torch.randn(*s, device=DEVICE, dtype=torch.float32).to(dtype)
    q, k, v, dout = (make(T, H, D) for _ in range(4))
    if form == "packed":
        bias = wl.PackedBias(make(H, int((n * ((n + 7) // 8 * 8)).sum())))
    elif form == "none":
        bias = None
    else:
        bias = wl.DenseBias(make(len(n), H, L, L), rows="k")

    def call():
        return wl.hstu_attention_backward(
            dout, q, k, v, cu, bias=bias, mask=wl.Mask(right=0), max_seqlen_q=L, max_seqlen_k=L
        )

    flops = 10.0 * float((n.double() ** 2).sum()) * H * D * 0.5
    found = {}
    for kernels in ("auto", "mma.sync"):
        if kernels == "mma.sync" and form == "none":
            continue
        os.environ["WARPLOOM_KERNELS"] = kernels
        result = call()
        if small:
            found[kernels] = 0.0
            continue
        call()
        times = []
        for _ in range(5):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(); call(); end.record(); torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        found[kernels] = flops / statistics.median(times) * 1e-9
        if kernels == "auto":
            first = result
        elif form != "none":
            a, b = first.dbias.float(), result.dbias.float()
            found["dbias differs by"] = ((a - b).norm() / b.norm().clamp(min=1e-30)).item()
            found["dq by"] = ((first.dq.float() - result.dq.float()).norm() / result.dq.float().norm()).item()
            del a, b
    print(kind, f"D{D}", str(dtype)[6:], form, {k: round(x, 4 if "by" in k else 0) for k, x in found.items()}, flush=True)


for kind, D, dtype, form in (
    ("jagged", 128, torch.bfloat16, "dense"), ("jagged", 128, torch.bfloat16, "none"),
    ("jagged", 64, torch.bfloat16, "dense"), ("4095", 128, torch.bfloat16, "dense"), ("4096", 128, torch.bfloat16, "dense"),
    ("jagged", 128, torch.bfloat16, "packed"), ("4096", 128, torch.bfloat16, "packed"),
    ("4096", 128, torch.float16, "dense"), ("4096", 64, torch.bfloat16, "packed"),
):
    try:
        run(kind, D, dtype, form)
    except Exception as error:
        print(kind, D, dtype, form, type(error).__name__, str(error)[:300], flush=True)
