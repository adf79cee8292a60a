"""bias_bench.py D [warm]: forward TFLOP/s of every form of bias, HSTU causal, B 8 L 4096 H 4 and 64 jagged sequences."""
import os
import sys
import torch
import warploom as wl

DIM, WARM = int(sys.argv[1]), "warm" in sys.argv
DEV = os.environ.get("DEVICE", "cuda")
B, L, H, N = (8, 4096, 4, 64) if DEV == "cuda" else (2, 64, 2, 3)
g = torch.Generator(device=DEV).manual_seed(0)


def normal(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device=DEV).normal_(generator=g)


def case(lengths, jagged):
    total, longest = int(lengths.sum()), int(lengths.max())
    cu = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0))).int().to(DEV)
    q, k, v = (normal(total, H, DIM) for _ in range(3))
    seqs = len(lengths)
    packed = int((lengths * ((lengths + 7) // 8 * 8)).sum())
    times = torch.rand(total, generator=g, device=DEV).mul(3600).long().cumsum(0)
    tables = [torch.randn(H, n, generator=g, device=DEV) for n in (longest, 128)]
    made = {
        "none": lambda: None,
        "odd": lambda: wl.DenseBias(normal(seqs, H, longest, longest + 1 - longest % 2)[..., :longest], rows="k"),
        "packed": lambda: wl.PackedBias(normal(H, packed)),
        "bucketed": lambda: wl.BucketedBias(*tables, times),
        "position": lambda: wl.BucketedBias(tables[0], None, None),
    }
    if not jagged:
        made["dense"] = lambda: wl.DenseBias(normal(seqs, H, longest, longest), rows="k")
        made["float32"] = lambda: wl.DenseBias(normal(seqs, H, longest, longest, dtype=torch.float32), rows="k")
        made["unsorted"] = lambda: wl.BucketedBias(*tables, times[torch.randperm(total, generator=torch.Generator().manual_seed(1)).to(DEV)])
    flops = 2.0 * float((lengths.double() ** 2).sum()) * H * DIM
    rates = {}
    base = 0.0
    for name, make in made.items():
        try:
            bias = make()
            call = lambda: wl.hstu_attention(q, k, v, cu, mask=wl.Mask(right=0), bias=bias, max_seqlen_q=longest, max_seqlen_k=longest)
            call()
            if WARM or DEV != "cuda":
                continue
            ms = []
            for _ in range(7):
                a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                a.record()
                for _ in range(3):
                    call()
                b.record()
                torch.cuda.synchronize()
                ms.append(a.elapsed_time(b) / 3)
            rates[name] = flops / sorted(ms)[3] / 1e9
            base = base or rates[name]
        except Exception as error:  # noqa: BLE001
            rates[name] = 0.0
            print(name, "failed:", str(error)[:200])
        bias = None
        if DEV == "cuda":
            torch.cuda.empty_cache()
    print("jagged" if jagged else "L4096", "D", DIM, "  ".join(f"{n} {r:.0f} ({r / (base or 1):.2f})" for n, r in rates.items()), flush=True)


case(torch.full((B,), L), False)
if DIM <= 128:
    case(torch.randint(L // 16, L // 2 + 1, (N,), generator=torch.Generator().manual_seed(0)), True)
