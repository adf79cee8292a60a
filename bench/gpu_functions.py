"""The score and mask functions of the GPU checks: as text for the call, and once more in torch for the reference.

torch is imported by what computes, so that the texts are known without it.
"""

from __future__ import annotations

from typing import Any

# name -> (text, slope or None to have it derived, parameters)
SCORES: dict[str, tuple[str, str | None, dict[str, float]]] = {
    "rational": ("z * (0.5 + 0.5 * z / (1 + abs(z)))", None, {}),
    "relu2": ("relu(z) * relu(z)", "2 * relu(z)", {}),
    "never-0": ("1.5 + tanh(beta * z)", None, {"beta": 0.7}),
    "capped": ("t = c * tanh(z / c);\nt * sigmoid(t)", None, {"c": 2.5}),
    "steep": ("1e5 * z * abs(z)", None, {}),  # passes float16's 65504
    "swish": ("z * sigmoid(beta * z)", None, {"beta": -1.3}),
    "all": (
        "a = gelu(z) + softplus(z) * erf(z) - expm1(min(z, 1)) * rsqrt(2 + z * z);\n"
        "b = pow(1.5 + tanh(z), 0.7) * log(2 + sigmoid(z)) + exp2(tanh(z)) * erfc(z) + log2(3 + tanh(z));\n"
        "c = z > 0.5 ? z * z : z - 0.25;\n"
        "a + b + c + sign(z) * clamp(z, -2, 2) + log1p(exp(-abs(z))) * sqrt(1 + z * z) - silu(max(z, -3))",
        None,
        {},
    ),
}


def score(name: str, z: Any) -> Any:
    """The score function in torch, in z's type; "steep" in NumPy as well."""
    if name == "steep":
        return 1e5 * z * abs(z)
    import torch

    f = torch.nn.functional
    if name == "rational":
        return z * (0.5 + 0.5 * z / (1 + z.abs()))
    if name == "relu2":
        return torch.relu(z) ** 2
    if name == "never-0":
        return 1.5 + torch.tanh(0.7 * z)
    if name == "capped":
        return f.silu(2.5 * torch.tanh(z / 2.5))
    if name == "swish":
        return z * torch.sigmoid(-1.3 * z)
    assert name == "all"
    a = f.gelu(z) + f.softplus(z, threshold=1000) * torch.erf(z)
    a = a - torch.expm1(z.clamp(max=1)) / torch.sqrt(2 + z * z)
    b = (1.5 + torch.tanh(z)) ** 0.7 * torch.log(2 + torch.sigmoid(z))
    b = b + torch.exp2(torch.tanh(z)) * torch.erfc(z) + torch.log2(3 + torch.tanh(z))
    c = torch.where(z > 0.5, z * z, z - 0.25) + z.clamp(-2, 2).abs()
    return a + b + c + torch.log1p(torch.exp(-z.abs())) * torch.sqrt(1 + z * z) - f.silu(z.clamp(min=-3))


def slope(name: str, z: Any) -> Any:
    """Its slope, by torch's autograd."""
    import torch

    with torch.enable_grad():
        z = z.detach().requires_grad_()
        return torch.autograd.grad(score(name, z).sum(), z)[0]


# name -> (text, parameters)
MASKS: dict[str, tuple[str, dict[str, int]]] = {
    "blocks": ("[r / 50 * 50, r + 1)", {}),
    "anchored": ("[0, nc), [max(nc, r - w), min(r + 1, h)), [r, r + (r >= h ? 1 : 0))", {"w": 40}),
    "by-head": ("[r - (head + 1) * 30, r + 1), [(b + 1) * 100, (b + 1) * 100 + i % 7)", {}),
}


def visible(name: str, i: Any, r: Any, j: Any, lk: int, contexts: int, targets: int, b: int, head: Any) -> Any:
    """Who sees whom: in torch for i, r (Lq, 1), j (1, Lk), head (heads, 1, 1); "by-head" also for one row of one head
    with j an array."""
    if name == "blocks":
        return ((j // 50 == r // 50) & (j <= r))[None]
    if name == "anchored":
        h = lk - targets
        return ((j < contexts) | ((r - 40 <= j) & (j >= contexts) & (j <= r) & (j < h)) | ((r >= h) & (j == r)))[None]
    assert name == "by-head"
    first = (b + 1) * 100
    return ((r - (head + 1) * 30 <= j) & (j <= r)) | ((first <= j) & (j < first + i % 7))
