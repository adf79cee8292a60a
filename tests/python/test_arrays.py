"""Arrays of other libraries: NumPy, DLPack, the array interface; with and without torch and NumPy installed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import warploom as wl

RNG = np.random.default_rng(0)
Q, K, V = (RNG.standard_normal((6, 2, 8)).astype(np.float32) for _ in range(3))
CU = np.array([0, 2, 6], np.int32)


def expected() -> Any:
    return wl.hstu_attention(*(torch.from_numpy(x) for x in (Q, K, V, CU))).numpy()


class OnlyDlpack:
    """What a library of arrays shows at the least."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class OnlyInterface:
    def __init__(self, array: Any) -> None:
        self._array = array

    @property
    def __array_interface__(self) -> Any:
        return self._array.__array_interface__


class Namespaced(OnlyDlpack):
    """An array of a library that follows the array API standard, as JAX and CuPy do."""

    def __array_namespace__(self) -> Any:
        class Namespace:
            @staticmethod
            def from_dlpack(x: Any) -> Any:
                return Namespaced(np.from_dlpack(x))

        return Namespace


def test_numpy_in_numpy_out():
    out, lse = wl.softmax_attention(Q, K, V, CU, return_lse=True)
    assert type(out) is np.ndarray
    assert type(lse) is np.ndarray
    assert np.array_equal(wl.hstu_attention(Q, K, V, CU), expected())


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_numpy_16_bit_types(dtype):
    q, k, v = (x.astype(dtype) for x in (Q, K, V))
    out = wl.hstu_attention(q, k, v, CU)
    assert out.dtype == np.dtype(dtype)
    np.testing.assert_allclose(out.astype(np.float32), expected(), rtol=0.1, atol=0.02)


def test_read_only_numpy_arrays_are_taken():
    arrays = [x.copy() for x in (Q, K, V, CU)]
    for array in arrays:
        array.flags.writeable = False
    assert np.array_equal(wl.hstu_attention(*arrays), expected())
    tensor = torch.from_numpy(Q)
    wl.hstu_attention(tensor, tensor, tensor, arrays[3])


def test_only_dlpack_gives_torch():
    out = wl.hstu_attention(OnlyDlpack(Q), OnlyDlpack(K), OnlyDlpack(V), OnlyDlpack(CU))
    assert isinstance(out, torch.Tensor)
    assert np.array_equal(out.numpy(), expected())


def test_array_namespace_gives_its_own_library():
    arrays = [Namespaced(x) for x in (Q, K, V, CU)]
    out = wl.hstu_attention(*arrays)
    assert type(out) is Namespaced
    assert np.array_equal(np.from_dlpack(out), expected())
    gradients = wl.hstu_attention_backward(out, *arrays, bias=wl.BucketedBias(position=np.zeros((1, 4), np.float32)))
    assert type(gradients.dk) is Namespaced
    assert type(gradients.dbias[0]) is Namespaced
    assert gradients.dbias[1] is None


def test_only_an_array_interface_gives_numpy():
    out = wl.hstu_attention(*(OnlyInterface(x) for x in (Q, K, V, CU)))
    assert type(out) is np.ndarray
    assert np.array_equal(out, expected())


def test_index_arrays_of_another_library_are_taken():
    q, k, v = (torch.from_numpy(x) for x in (Q, K, V))
    mask = wl.Mask(right=0, num_targets=np.array([1, 2]))
    one = wl.hstu_attention(q, k, v, CU, mask=mask, divisor=np.full(6, 2, np.float32))
    two = wl.hstu_attention(Q, K, V, torch.from_numpy(CU), mask=mask, divisor=torch.full((6,), 2.0))
    assert np.array_equal(one.numpy(), two)


def test_gradients_of_numpy_calls():
    bias = wl.DenseBias(np.zeros((1, 2, 4, 4), np.float32))
    gradients = wl.hstu_attention_backward(np.ones_like(Q), Q, K, V, CU, bias=bias)
    assert [type(x) for x in gradients] == [np.ndarray] * 4
    assert wl.hstu_attention_backward(np.ones_like(Q), Q, K, V, CU).dbias is None


def test_strided_dout_is_taken():
    wide = np.zeros((6, 2, 16), np.float32)
    wide[..., ::2] = Q
    expanded = np.broadcast_to(np.float32(1), Q.shape)
    for dout in (wide[..., ::2], expanded, Q.transpose(2, 1, 0).copy().transpose(2, 1, 0)):
        one = wl.hstu_attention_backward(dout, Q, K, V, CU)
        two = wl.hstu_attention_backward(np.ascontiguousarray(dout), Q, K, V, CU)
        three = wl.hstu_attention_backward(
            torch.from_numpy(np.array(dout)), *(torch.from_numpy(x) for x in (Q, K, V, CU))
        )
        for name in ("dq", "dk", "dv"):
            assert np.array_equal(getattr(one, name), getattr(two, name))
            assert np.array_equal(getattr(one, name), getattr(three, name).numpy())


# --- without torch, without NumPy -------------------------------------------------------------------------------------

_BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Block())
import warploom as wl
"""


def run_without(blocked: tuple[str, ...], code: str) -> str:
    """Runs code in an interpreter that cannot import some packages."""
    program = _BLOCK.format(blocked=blocked) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_needs_neither_torch_nor_numpy_and_imports_none():
    output = run_without(
        ("torch", "numpy"),
        "print(wl.__version__, wl.devices()[0]['kind'], 'torch' in sys.modules, 'numpy' in sys.modules)",
    )
    assert output.split() == [wl.__version__, "cpu", "False", "False"]
    assert run_without((), "print('torch' in sys.modules, 'numpy' in sys.modules)").split() == ["False", "False"]


def test_dlpack_without_torch_or_numpy():
    """The package's own arrays go in and come out through ctypes alone."""
    output = run_without(
        ("torch", "numpy"),
        """
        import ctypes, gc
        from warploom._dlpack import Array, _lent

        def array(values, shape, dtype, kind):
            made = Array(shape, dtype)
            (kind * len(values)).from_address(made.address)[:] = values
            return made

        class Only:
            def __init__(self, x): self.x = x
            def __dlpack__(self, **k): return self.x.__dlpack__(**k)
            def __dlpack_device__(self): return self.x.__dlpack_device__()

        q = Only(array([1.0] * 16, (2, 1, 8), "float32", ctypes.c_float))
        cu = Only(array([0, 2], (2,), "int64", ctypes.c_int64))
        counts = Only(array([1], (1,), "int64", ctypes.c_int64))
        out = wl.hstu_attention(q, q, q, cu, alpha=1.0, divisor=1.0, mask=wl.Mask(right=0, num_targets=counts))
        values = (ctypes.c_float * 16).from_address(out.address)[:]
        import math
        silu = 8 / (1 + math.exp(-8))
        assert all(abs(x - silu) < 1e-4 for x in values[:8]), values
        assert all(abs(x - 2 * silu) < 1e-4 for x in values[8:]), values
        assert hasattr(out, "__dlpack__")
        gradients = wl.hstu_attention_backward(out, q, q, q, cu)
        assert gradients.dq.shape == (2, 1, 8)
        del gradients, out
        gc.collect()
        assert not _lent, _lent
        print("fine")
        """,
    )
    assert output.strip() == "fine"


def test_numpy_without_torch():
    output = run_without(
        ("torch",),
        """
        import numpy as np
        x = np.ones((3, 1, 8), np.float32)
        class Only:
            def __init__(self, x): self.x = x
            def __dlpack__(self, **k): return self.x.__dlpack__()
            def __dlpack_device__(self): return self.x.__dlpack_device__()
        out = wl.softmax_attention(Only(x), Only(x), Only(x), np.array([0, 3]))
        assert not isinstance(out, np.ndarray)
        back = np.from_dlpack(out)
        del out
        assert np.allclose(back, 1)
        assert np.array_equal(wl.softmax_attention(x, x, x, np.array([0, 3])), back)
        print("fine")
        """,
    )
    assert output.strip() == "fine"


def test_array_interface_without_numpy():
    output = run_without(
        ("torch", "numpy"),
        """
        import ctypes
        from warploom._dlpack import Array
        class Only:
            def __init__(self, shape, dtype, kind, values):
                self.array = Array(shape, dtype)
                (kind * len(values)).from_address(self.array.address)[:] = values
                self.__array_interface__ = self.array.__array_interface__
        x = Only((2, 1, 8), "float32", ctypes.c_float, [1.0] * 16)
        out = wl.softmax_attention(x, x, x, Only((2,), "int32", ctypes.c_int32, [0, 2]))
        assert (ctypes.c_float * 16).from_address(out.__array_interface__["data"][0])[:] == [1.0] * 16
        print("fine")
        """,
    )
    assert output.strip() == "fine"


def test_import_before_torch_compiles_all_the_same():
    output = run_without(
        (),
        """
        import torch
        x, cu = torch.randn(3, 1, 8), torch.tensor([0, 3])
        f = torch.compile(lambda x: wl.hstu_attention(x, x, x, cu), fullgraph=True, backend="eager")
        assert torch.equal(f(x), wl.hstu_attention(x, x, x, cu))
        print("fine")
        """,
    )
    assert output.strip() == "fine"
