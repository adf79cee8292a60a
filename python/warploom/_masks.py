"""Which columns a row sees: plain descriptions, checked when a call uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["IntervalMask", "Mask"]


@dataclass(frozen=True, eq=False)
class Mask:
    """A window, and optionally contexts and targets around the history of each sequence.

    Inside a sequence the order is ``[contexts | history | targets]``. Rows are counted in key coordinates
    (``r = i + Lk - Lq``, bottom-right alignment), ``h = Lk - num_targets``:

    * a history row sees ``r - left <= j <= r + right``;
    * a context row sees ``0 <= j < h``;
    * a target row sees the history (``r - left <= j < h``) and the part of its own group up to itself.

    Arguments:
        left: columns to the left of the row, 0 or more; None is unbounded.
        right: columns to the right of the row, 0 or more; None is unbounded. Contexts and targets need ``right=0``.
        num_contexts: None, an int for every sequence with at least one key, or an int32 tensor (B) (int64 is
            converted).
        num_targets: likewise.
        target_group_size: targets that see each other, 1 or more.
        target_window_from_history_end: measure a target row's window from the end of the history (Meta's rule,
            ``h - left <= j < h``) instead of from the row.

    Values are checked by the call: ValueError for one that breaks a rule, TypeError for a wrong kind or dtype.
    """

    left: int | None = None
    right: int | None = None
    num_contexts: Any = None
    num_targets: Any = None
    target_group_size: int = 1
    target_window_from_history_end: bool = False

    @staticmethod
    def causal() -> Mask:
        """Each row sees itself and everything before it."""
        return Mask(right=0)

    @staticmethod
    def full() -> Mask:
        """Each row sees every column."""
        return Mask()


@dataclass(frozen=True, eq=False)
class IntervalMask:
    """Any mask as a list of half-open column intervals for each query row.

    Arguments:
        intervals: int32 (H or 1, Tq, n, 2), entries ``[begin, end)``; any n. Intervals may be empty, overlap, or run
            past the sequence (they are clipped to [0, Lk]). A dense batch has Tq = B * Lq.
    """

    intervals: Any
