"""Functions for Python functions that are traced (`warploom.ScoreFunction`, `warploom.MaskFunction`).

    from warploom import functions as F

    swish = wl.ScoreFunction(lambda z, beta: z * F.sigmoid(beta * z), beta=1.7)

Each takes symbols and numbers, at least one symbol.
"""

from __future__ import annotations

from typing import Any

from ._functions import FUNCTIONS, Symbol

__all__ = list(FUNCTIONS)


def _function(name: str) -> Any:
    def call(*arguments: Any) -> Symbol:
        for argument in arguments:
            if isinstance(argument, Symbol):
                return argument._call(name, *arguments)
        raise TypeError(f"functions.{name} has no symbol among its arguments; on numbers use math.{name}")

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{name} of a traced value (docs/score-functions.md)."
    return call


globals().update({name: _function(name) for name in FUNCTIONS})
