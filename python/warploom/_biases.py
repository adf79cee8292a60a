"""The relative attention bias R: plain descriptions, checked when a call uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["BucketedBias", "DenseBias", "PackedBias"]


@dataclass(frozen=True, eq=False)
class DenseBias:
    """A stored bias, ``R[b, h, row, j]``.

    Arguments:
        values: (B or 1, H or 1, R, max_seqlen_k), of q's dtype or float32; any strides (0 broadcasts), last dimension
            contiguous. Its gradient has its shape and dtype.
        rows: "k" when the row axis has max_seqlen_k entries and counts rows in key coordinates (r), "q" when it has
            max_seqlen_q and counts query rows (i); None decides by the axis's size, "k" when both fit.
    """

    values: Any
    rows: str | None = None


@dataclass(frozen=True, eq=False)
class PackedBias:
    """A stored bias without padding to the longest sequence.

    Arguments:
        values: (H or 1, sum over b of rows_b * pitch_b), of q's dtype or float32, last dimension contiguous; pitch_b is
            the sequence's slot of keys rounded up to 16 bytes. The gradient of a row's padding is 0.
        rows: "k": each sequence has as many rows as keys (indexed by r); "q": as many as queries (by i).
    """

    values: Any
    rows: str = "k"


@dataclass(frozen=True, eq=False)
class BucketedBias:
    """Two small tables from which each tile computes its bias: R is never stored.

    ``R[h, r, j] = position[h, clamp(r - j, 0, n_pos - 1)] + time[h, bucket(t[r] - t[j])]``, where bucket(d) is the
    number of thresholds <= abs(d).

    Arguments:
        position: float32 (H or 1, n_pos), or None.
        time: float32 (H or 1, n_time), or None.
        timestamps: int64 (Tk), any unit; needed by ``time``.
        time_bucket: increasing int64 (n_time - 1) thresholds in the timestamps' unit (equal neighbours are legal); None
            is ceil(e^(0.301 n)), n = 1 .. n_time - 1.
    """

    position: Any = None
    time: Any = None
    timestamps: Any = None
    time_bucket: Any = None
