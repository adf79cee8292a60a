"""Warploom: fused attention for generative recommenders and transformers (HSTU and softmax), on the CPU and on NVIDIA
GPUs.

    import warploom as wl

    out = wl.hstu_attention(q, k, v, cu_seqlens, mask=wl.Mask.causal())

Tensors are torch's, NumPy's, or anything with ``__dlpack__`` or ``__array_interface__``; neither torch nor NumPy is
required.
"""

from ._attention import hstu_attention, hstu_attention_backward, softmax_attention, softmax_attention_backward
from ._biases import BucketedBias, DenseBias, PackedBias
from ._call import Gradients
from ._functions import MaskFunction, ScoreFunction
from ._library import version as __version__
from ._masks import IntervalMask, Mask
from ._matmul import explain_matmul, matmul
from ._planning import devices, explain, get_num_threads, info, set_num_threads, warmup
from ._simulate import (
    Program,
    Sweep,
    Timeline,
    simulate,
    simulate_design,
    simulate_experiments,
    simulate_report,
    simulate_sweep,
    simulate_work,
)

__all__ = [
    "BucketedBias",
    "DenseBias",
    "Gradients",
    "IntervalMask",
    "Mask",
    "MaskFunction",
    "PackedBias",
    "Program",
    "ScoreFunction",
    "Sweep",
    "Timeline",
    "__version__",
    "devices",
    "explain",
    "explain_matmul",
    "get_num_threads",
    "hstu_attention",
    "hstu_attention_backward",
    "info",
    "matmul",
    "set_num_threads",
    "simulate",
    "simulate_design",
    "simulate_experiments",
    "simulate_report",
    "simulate_sweep",
    "simulate_work",
    "softmax_attention",
    "softmax_attention_backward",
    "warmup",
]
