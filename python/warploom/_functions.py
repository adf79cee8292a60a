"""Score and mask functions that a user writes: as text, or as a Python function that is traced to such text."""

from __future__ import annotations

import ctypes
import inspect
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import _library

__all__ = ["MaskFunction", "ScoreFunction"]

# Names of the language's functions, and under which names other libraries call the same.
FUNCTIONS = (
    *("abs", "clamp", "erf", "erfc", "exp", "exp2", "expm1", "gelu", "log", "log1p", "log2", "max", "min", "pow"),
    *("relu", "rsqrt", "select", "sigmoid", "sign", "silu", "softplus", "sqrt", "tanh"),
)
_OTHER_NAMES = {
    "absolute": "abs",
    "clip": "clamp",
    "fabs": "abs",
    "fmax": "max",
    "fmin": "min",
    "logistic": "sigmoid",
    "maximum": "max",
    "minimum": "min",
    "power": "pow",
    "sgn": "sign",
    "where": "select",
}
_OPERATORS = {
    "add": "+",
    "eq": "==",
    "equal": "==",
    "floor_divide": "/",
    "ge": ">=",
    "greater": ">",
    "greater_equal": ">=",
    "gt": ">",
    "le": "<=",
    "less": "<",
    "less_equal": "<=",
    "logical_and": "&&",
    "logical_or": "||",
    "lt": "<",
    "mul": "*",
    "multiply": "*",
    "ne": "!=",
    "not_equal": "!=",
    "remainder": "%",
    "sub": "-",
    "subtract": "-",
    "div": "/",
    "divide": "/",
    "true_divide": "/",
}


def _text(value: Any) -> str:
    """An operand of a traced expression as text."""
    if isinstance(value, Symbol):
        return value._name
    if isinstance(value, (bool, numbers.Integral)):
        return str(int(value))
    if isinstance(value, numbers.Real):
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"{number} in a traced function; its constants are finite")
        return repr(number)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return _text(value.item())
    kind = type(value)
    raise TypeError(f"a traced function combines its symbol with a {kind.__module__}.{kind.__qualname__}; use numbers")


class _Trace:
    """The statements of one traced function, each under a name of its own: what Python shares is computed once."""

    def __init__(self, taken: Sequence[str], integer: bool) -> None:
        self.statements: list[str] = []
        self.taken = frozenset(taken)
        self.integer = integer

    def add(self, expression: str) -> Symbol:
        name = f"x{len(self.statements) + 1}"
        while name in self.taken:
            name += "_"
        self.statements.append(f"{name} = {expression};")
        return Symbol(name, self)


class Symbol:
    """A value inside a traced function: z, a row of a mask, a parameter, or what was computed from them.

    Arithmetic, comparisons and ``abs`` work as on numbers; functions are methods (``z.sigmoid()``) and those of
    `warploom.functions`, and NumPy's and torch's of the same names may be called on it. A choice is
    ``functions.select(condition, x, y)``; conditions are joined by ``&`` and ``|`` and turned by ``~``.
    """

    __slots__ = ("_name", "_trace")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str, trace: _Trace) -> None:
        self._name = name
        self._trace = trace

    def _binary(self, sign: str, other: Any, swapped: bool = False) -> Symbol:
        a, b = _text(self), _text(other)
        return self._trace.add(f"{b} {sign} {a}" if swapped else f"{a} {sign} {b}")

    def _call(self, name: str, *arguments: Any) -> Symbol:
        return self._trace.add(f"{name}({', '.join(map(_text, arguments))})")

    def __add__(self, other: Any) -> Symbol:
        return self._binary("+", other)

    def __radd__(self, other: Any) -> Symbol:
        return self._binary("+", other, True)

    def __sub__(self, other: Any) -> Symbol:
        return self._binary("-", other)

    def __rsub__(self, other: Any) -> Symbol:
        return self._binary("-", other, True)

    def __mul__(self, other: Any) -> Symbol:
        return self._binary("*", other)

    def __rmul__(self, other: Any) -> Symbol:
        return self._binary("*", other, True)

    def __truediv__(self, other: Any) -> Symbol:
        if self._trace.integer:
            raise TypeError("/ in a mask function, which counts in whole numbers; use //")
        return self._binary("/", other)

    def __rtruediv__(self, other: Any) -> Symbol:
        if self._trace.integer:
            raise TypeError("/ in a mask function, which counts in whole numbers; use //")
        return self._binary("/", other, True)

    def __floordiv__(self, other: Any) -> Symbol:
        return self._whole("//")._binary("/", other)

    def __rfloordiv__(self, other: Any) -> Symbol:
        return self._whole("//")._binary("/", other, True)

    def __mod__(self, other: Any) -> Symbol:
        return self._whole("%")._binary("%", other)

    def __rmod__(self, other: Any) -> Symbol:
        return self._whole("%")._binary("%", other, True)

    def _whole(self, sign: str) -> Symbol:
        if not self._trace.integer:
            raise TypeError(f"{sign} in a score function; it belongs to masks, which count in whole numbers")
        return self

    def __pow__(self, other: Any) -> Symbol:
        return self._call("pow", self, other)

    def __rpow__(self, other: Any) -> Symbol:
        return self._call("pow", other, self)

    def __neg__(self) -> Symbol:
        return self._trace.add(f"-{_text(self)}")

    def __pos__(self) -> Symbol:
        return self

    def __abs__(self) -> Symbol:
        return self._call("abs", self)

    def clamp(self, min: Any = None, max: Any = None) -> Symbol:
        lower = self if min is None else self._call("max", self, min)
        return lower if max is None else lower._call("min", lower, max)

    clip = clamp

    def __lt__(self, other: Any) -> Symbol:
        return self._binary("<", other)

    def __le__(self, other: Any) -> Symbol:
        return self._binary("<=", other)

    def __gt__(self, other: Any) -> Symbol:
        return self._binary(">", other)

    def __ge__(self, other: Any) -> Symbol:
        return self._binary(">=", other)

    def __eq__(self, other: object) -> Symbol:  # type: ignore[override]
        return self._binary("==", other)

    def __ne__(self, other: object) -> Symbol:  # type: ignore[override]
        return self._binary("!=", other)

    def __and__(self, other: Any) -> Symbol:
        return self._binary("&&", other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Symbol:
        return self._binary("||", other)

    __ror__ = __or__

    def __invert__(self) -> Symbol:
        return self._trace.add(f"!{_text(self)}")

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a traced function cannot branch on its symbol (if, and, or, not, min, max); use warploom.functions: "
            "select(condition, x, y), min, max, and the operators &, |, ~"
        )

    def __float__(self) -> NoReturn:
        raise TypeError(
            "a traced function's symbol is no number: math.exp and the like cannot take it; use z.exp(), warploom's "
            "functions, NumPy's or torch's"
        )

    __int__ = __index__ = __float__

    def __getattr__(self, name: str) -> Callable[..., Symbol]:
        function = _OTHER_NAMES.get(name, name)
        if function not in FUNCTIONS:
            raise AttributeError(f"a traced function's symbol has no {name}; it has {', '.join(FUNCTIONS)}")
        return lambda *arguments: self._call(function, self, *arguments)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Symbol:
        if method != "__call__" or any(value is not None for value in options.values()):
            raise TypeError(f"numpy.{ufunc.__name__}.{method} with options cannot be traced")
        return _foreign(f"numpy.{ufunc.__name__}", ufunc.__name__, self._trace, inputs)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Symbol:
        if options:
            raise TypeError(f"numpy.{function.__name__} with options cannot be traced")
        return _foreign(f"numpy.{function.__name__}", function.__name__, self._trace, arguments)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Symbol:
        options = dict(options or {})
        if function.__name__ in ("clamp", "clip"):
            return Symbol.clamp(*arguments, **options)
        options.pop("inplace", None)
        if any(value is not None for value in options.values()):
            raise TypeError(f"torch's {function.__name__} with {', '.join(options)} cannot be traced")
        trace = next(x._trace for x in arguments if isinstance(x, Symbol))
        return _foreign(f"torch's {function.__name__}", function.__name__, trace, arguments)


def _foreign(shown: str, name: str, trace: _Trace, arguments: Sequence[Any]) -> Symbol:
    """A function of NumPy or torch on a symbol."""
    if name in _OPERATORS and len(arguments) == 2:
        a, b = map(_text, arguments)
        return trace.add(f"{a} {_OPERATORS[name]} {b}")
    if name in ("negative", "neg"):
        return trace.add(f"-{_text(arguments[0])}")
    if name in ("logical_not", "bitwise_not"):
        return trace.add(f"!{_text(arguments[0])}")
    if name == "square":
        return trace.add(f"{_text(arguments[0])} * {_text(arguments[0])}")
    function = _OTHER_NAMES.get(name, name)
    if function not in FUNCTIONS:
        raise TypeError(f"{shown} cannot be traced; score functions have {', '.join(FUNCTIONS)}")
    return trace.add(f"{function}({', '.join(map(_text, arguments))})")


# --- the C ABI's side -------------------------------------------------------------------------------------------------


class _Function(ctypes.Structure):
    """warploom_function of include/warploom/warploom.h."""

    _fields_ = (
        ("text", ctypes.c_char_p),
        ("slope", ctypes.c_char_p),
        ("parameters", ctypes.c_char_p),
        ("values", ctypes.POINTER(ctypes.c_double)),
        ("num_values", ctypes.c_int64),
    )


def _encoded(name: str, text: str) -> bytes:
    if "\0" in text:
        raise ValueError(f"{name} has a null character, which no text has")
    return text.encode()


def structure(
    kind: str, text: str, slope: str | None, names: str, values: Sequence[float]
) -> tuple[_Function, tuple[int, int, int, int, int]]:
    """The C structure (which keeps its memory), and its fields as integers."""
    array = (ctypes.c_double * len(values))(*values)
    function = _Function(
        _encoded(kind, text),
        None if slope is None else _encoded("slope", slope),
        _encoded("parameters", names),
        array,
        len(values),
    )
    fields = (ctypes.c_uint64 * 5).from_buffer(function)
    return function, tuple(fields)


def _parameter(name: str, value: Any, whole: bool) -> float:
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    kinds: Any = numbers.Integral if whole else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kinds):
        kind = type(value)
        raise TypeError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}; a parameter is {'an int' if whole else 'a number'}"
        )
    return float(value)


def _traced(
    what: str, function: Callable[..., Any], symbols: Sequence[str], parameters: Sequence[str], integer: bool
) -> tuple[_Trace, Any]:
    """Calls `function` with the symbols that it asks for, by its arguments' names: the first of a score is z whatever
    it is called."""
    trace = _Trace((*symbols, *parameters), integer)
    known = {name: Symbol(name, trace) for name in (*symbols, *parameters)}
    arguments = list(inspect.signature(function).parameters.values())
    if any(x.kind in (x.VAR_POSITIONAL, x.VAR_KEYWORD) for x in arguments):
        raise TypeError(f"{what} is a function with * or ** arguments; name each")
    names = [x.name for x in arguments if x.name in known or x.default is x.empty]
    given: dict[str, Symbol] = {}
    for place, name in enumerate(names):
        if not integer and place == 0:
            given[name] = known["z"]
        elif name in known:
            given[name] = known[name]
        else:
            raise TypeError(
                f"{what} asks for {name}, which is unknown; known are {', '.join(known)}, and a parameter is passed "
                f"with its value: {name}=..."
            )
    return trace, function(**given)


class ScoreFunction:
    """What P is made of in HSTU attention instead of silu: ``out = f(alpha * (q k^T + R)) v / divisor``.

        wl.ScoreFunction("z * (0.5 + 0.5 * z / (1 + abs(z)))")             a rational silu
        wl.ScoreFunction("z * sigmoid(beta * z)", beta=1.7)                swish
        wl.ScoreFunction(lambda z: torch.relu(z) ** 2)

    Arguments:
        function: a C++ expression of z (docs/score-functions.md): ``+ - * /``, comparisons, ``?:``, ``&& || !``, and
            abs, clamp, erf, erfc, exp, exp2, expm1, gelu, log, log1p, log2, max, min, pow, relu, rsqrt, select,
            sigmoid, sign, silu, softplus, sqrt, tanh; parts may be named, ``t = tanh(z / 5); 5 * t * sigmoid(t)``. Or
            a Python function of one value and the parameters that it names: it is called once with a `Symbol`, on which
            operators and the functions above work, NumPy's and torch's of the same names too.
        slope: its derivative in the same form; None derives it.
        parameters: numbers by name. A value is read at every call: another one compiles nothing.

    The text is compiled for a GPU in seconds, once, and cached by itself; the CPU interprets it. The gradients of q, k,
    v and the bias flow through it; parameters have none. At -inf and for NaN it gives what its operations give.

    Raises:
        ValueError: the text is wrong; the message marks the place. TypeError: a kind is.
    """

    __slots__ = ("_names", "_slope", "_text", "_values")

    def __init__(
        self, function: str | Callable[..., Any], slope: str | Callable[..., Any] | None = None, **parameters: Any
    ) -> None:
        names = tuple(parameters)
        self._text = self._one("function", function, names)
        self._slope = None if slope is None else self._one("slope", slope, names)
        self._names = ", ".join(names)
        self._values = tuple(_parameter(name, value, False) for name, value in parameters.items())
        self._describe()

    @staticmethod
    def _one(what: str, function: Any, names: tuple[str, ...]) -> str:
        if isinstance(function, str):
            return function
        if not callable(function):
            raise TypeError(f"{what} is a {type(function).__qualname__}; pass a text or a function of z")
        trace, result = _traced(what, function, ("z",), names, integer=False)
        return " ".join((*trace.statements, _text(result)))

    def _describe(self) -> dict[str, Any]:
        function, _ = structure("score", self._text, self._slope, self._names, self._values)
        described: dict[str, Any] = _library.json_text("warploom_describe_score", ctypes.byref(function))
        return described

    @property
    def text(self) -> str:
        """The expression."""
        return self._text

    @property
    def slope(self) -> str:
        """The derivative that the backward pass uses, as text of the same language."""
        return str(self._describe()["slope"])

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters' values by name."""
        return dict(zip(self._names.split(", "), self._values, strict=True)) if self._names else {}

    def evaluate(self, z: Sequence[float]) -> tuple[list[float], list[float]]:
        """(values, slopes) at the numbers z, in float32 as the CPU back end computes them: to look at a function."""
        count = len(z)
        function, _ = structure("score", self._text, self._slope, self._names, self._values)
        points, values, slopes = ((ctypes.c_float * count)(*start) for start in (z, (), ()))
        _library.check(_library.library.warploom_evaluate_score(ctypes.byref(function), points, count, values, slopes))
        return list(values), list(slopes)

    def __repr__(self) -> str:
        slope = "" if self._slope is None else f", slope={self._slope!r}"
        return f"ScoreFunction({self._text!r}{slope}{''.join(f', {n}={v!r}' for n, v in self.parameters.items())})"


MASK_SYMBOLS = ("i", "r", "Lq", "Lk", "nc", "nt", "h", "b", "head")


class MaskFunction:
    """Which columns a row sees, as a function of its place: half-open intervals.

        wl.MaskFunction("[0, nc), [max(nc, r - w), r + 1)", num_contexts=4, w=256)
        wl.MaskFunction(lambda r, Lk: [(r // 64 * 64, r + 1)])             causal inside blocks of 64

    Arguments:
        intervals: ``[begin, end)``, one or more separated by commas, whose bounds are C++ expressions of whole numbers
            (64 bits; / rounds down): ``+ - * / %``, comparisons, ``?:``, ``&& || !``, abs, clamp, max, min, relu,
            select, sign. Intervals may be empty, overlap or run past the sequence. Their symbols, as in
            docs/attention.md: i (query row), r = i + Lk - Lq, Lq, Lk, nc, nt (the counts below), h = Lk - nt, b (number
            of the sequence), head. Or a Python function of those symbols and parameters that it names, which returns
            pairs (begin, end).
        num_contexts, num_targets: nc and nt: None (0), an int, or an int32 tensor (B), as in `Mask`.
        parameters: ints by name, read at every call.

    A GPU computes the intervals first, 8 bytes a row and interval (and head, where the text says head), and runs the
    kernels of `IntervalMask`: tiles that no row sees are not loaded, those that all see are not masked.

    Raises:
        ValueError: the text is wrong; the message marks the place. TypeError: a kind is.
    """

    __slots__ = ("_names", "_text", "_values", "num_contexts", "num_targets")

    def __init__(
        self,
        intervals: str | Callable[..., Any],
        *,
        num_contexts: Any = None,
        num_targets: Any = None,
        **parameters: Any,
    ) -> None:
        names = tuple(parameters)
        self.num_contexts = num_contexts
        self.num_targets = num_targets
        self._text = intervals if isinstance(intervals, str) else self._trace(intervals, names)
        self._names = ", ".join(names)
        self._values = tuple(_parameter(name, value, True) for name, value in parameters.items())
        function, _ = structure("mask", self._text, None, self._names, self._values)
        _library.json_text("warploom_describe_mask", ctypes.byref(function))

    @staticmethod
    def _trace(function: Any, names: tuple[str, ...]) -> str:
        if not callable(function):
            raise TypeError(f"intervals is a {type(function).__qualname__}; pass a text or a function of a row")
        trace, result = _traced("intervals", function, MASK_SYMBOLS, names, integer=True)
        pairs = (
            [result] if isinstance(result, tuple) and len(result) == 2 and not isinstance(result[0], tuple) else result
        )
        if not isinstance(pairs, (list, tuple)) or any(not isinstance(x, tuple) or len(x) != 2 for x in pairs):
            raise TypeError("a mask function returns pairs: [(begin, end), ...]")
        bounds = ", ".join(f"[{_text(begin)}, {_text(end)})" for begin, end in pairs)
        return " ".join((*trace.statements, bounds))

    @property
    def text(self) -> str:
        """The intervals."""
        return self._text

    @property
    def parameters(self) -> dict[str, int]:
        """The parameters' values by name."""
        values = map(int, self._values)
        return dict(zip(self._names.split(", "), values, strict=True)) if self._names else {}

    def __repr__(self) -> str:
        counts = "".join(
            f", {name}={value!r}"
            for name, value in (("num_contexts", self.num_contexts), ("num_targets", self.num_targets))
            if value is not None
        )
        return f"MaskFunction({self._text!r}{counts}{''.join(f', {n}={v!r}' for n, v in self.parameters.items())})"
