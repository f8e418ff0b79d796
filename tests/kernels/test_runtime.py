"""The kernels' surroundings: cache folders, threads, forks, and the number of things compiled."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import llvmlite.ir as ir
import numpy as np
import pytest
from numba import types
from numba.extending import intrinsic

import tinygrad_tf as tg
from tinygrad_tf.kernels import activation, runtime
from tinygrad_tf.nn import functional as F

PROGRAM = """
import numba
before = dict(vars(numba.config))
import numpy as np, tinygrad_tf as tg
from tinygrad_tf.kernels import cache, runtime
assert cache._folder is None, "importing must compile nothing"
def double(t, n_tasks, a, out):
    out[t] = 2 * a[t]
double = runtime.kernel(double)
out = np.zeros(3)
double(3, np.ones(3), out)
assert out.tolist() == [2, 2, 2]
print("FOLDER", runtime.cache_folder())
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, **environment}, capture_output=True, text=True,
                          timeout=120)  # fmt: skip


def test_bc64_cache_folder_that_is_a_file(tmp_path: Path) -> None:
    """BC-64: no writable cache: a warning, and everything works."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = run(TINYGRAD_TF_CACHE_DIR=str(blocked))
    assert done.returncode == 0, done.stderr
    assert "cannot write its kernel cache" in done.stderr and str(blocked) not in done.stdout


def test_bc64_cache_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    """BC-64: a new folder is made."""
    done = run(TINYGRAD_TF_CACHE_DIR=str(tmp_path / "a" / "b"))
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "a" / "b") in done.stdout and "cannot write" not in done.stderr


def test_bc63_fork_after_a_kernel_ran() -> None:
    """BC-63: the child of a process whose kernels have run neither hangs nor dies."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork on this platform")
    x = np.linspace(-3, 3, 100000, dtype=np.float32)
    expected = activation.silu(x)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            right = np.allclose(activation.silu(x), expected, atol=1e-6)
            os.write(writer, b"right" if right else b"wrong")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        assert answer.read() == b"right"
    assert os.waitpid(child, 0)[1] == 0


def test_bc68_one_signature_for_each_dtype() -> None:
    """BC-68: neither layout, size, nor read-only memory makes numba compile again."""
    base = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    frozen = base.copy()
    frozen.flags.writeable = False

    def work(a: Any) -> None:
        x = tg.from_numpy(a).requires_grad_()
        F.silu(tg.softmax(x, -1)).sum().backward()

    def compiled() -> dict[str, int]:
        from tinygrad_tf.kernels import normalization

        kernels = {f"{m.__name__}.{k}": v for m in (activation, normalization) for k, v in vars(m).items()
                   if isinstance(v, runtime.Kernel)}  # fmt: skip
        return {k: len(v.compiled) for k, v in kernels.items() if v.compiled}

    work(base)
    before = compiled()
    for a in (base.T, base[::2, ::-1], frozen, base[:5], base[:0], np.broadcast_to(base[0], (4, 6)), base[:1]):
        work(a)
    assert compiled() == before
    assert before and all(n <= 2 for n in before.values())


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "2"])
def test_bad_thread_numbers(bad: Any) -> None:
    with pytest.raises(ValueError, match="set_num_threads"):
        tg.set_num_threads(bad)


def test_contiguous_copies_only_when_it_must() -> None:
    a = np.ones((2, 3))
    assert runtime.contiguous(a) is a
    for b in (a.T, a[:, ::2], np.broadcast_to(a[0], (2, 3)), a.astype(">f8")):
        c = runtime.contiguous(b)
        assert c.flags.carray and c.dtype.isnative and (c == b).all()
    assert runtime.contiguous(a, np.float32).dtype == np.float32


SAME_BITS = """
import hashlib, numpy as np
from tinygrad_tf.kernels import activation, normalization
rng = np.random.default_rng(0)
x, g = (rng.standard_normal((50, 130)).astype(np.float32) for _ in range(2))
weight = rng.standard_normal(130).astype(np.float32)
y, mean, rstd = normalization.layer_norm(x, weight, weight, 1e-5)
results = (y, *normalization.layer_norm_backward(g, x, weight, mean, rstd), activation.gelu_backward(g, x))
print(hashlib.sha256(b"".join(a.tobytes() for a in results)).hexdigest())
"""


def test_code_that_is_loaded_computes_what_fresh_code_does(tmp_path: Path) -> None:
    """Bit for bit: the process that compiles, and the next one that finds the machine code on disk."""
    environment = {**os.environ, "TINYGRAD_TF_CACHE_DIR": str(tmp_path)}
    done = [subprocess.run([sys.executable, "-c", SAME_BITS], env=environment, capture_output=True, text=True, timeout=120)
            for _ in range(2)]  # fmt: skip
    assert all(d.returncode == 0 for d in done), done[0].stderr
    assert "compiling" in done[0].stderr and "compiling" not in done[1].stderr
    assert done[0].stdout == done[1].stdout


ALONE = """
import sys, numpy as np
from tinygrad_tf.kernels import attention
q, k = np.ones((1, 1, 70, 8), np.float32), np.ones((1, 1, 70, 8), np.float32)
if "all" in sys.argv:
    out, lse = attention.attention(q, k, k, 1.0, True)
    attention.attention_backward(out, q, k, k, out, lse, 1.0, True)
    attention.attention(q[:, :, :1], k, k, 1.0, True)
elif "backward" in sys.argv:
    attention.attention_backward(q, q, k, k, q, np.ones((1, 1, 70), np.float32), 1.0, True)
else:
    attention.attention(q[:, :, :1], k, k, 1.0, True)
"""


def test_loaded_code_brings_the_routines_that_it_calls(tmp_path: Path) -> None:
    """Also where another kernel, which is not loaded now, had them compiled."""
    environment = {**os.environ, "TINYGRAD_TF_CACHE_DIR": str(tmp_path)}
    for what in ("all", "backward", "few"):
        done = subprocess.run([sys.executable, "-c", ALONE, what], env=environment, capture_output=True, text=True,
                              timeout=120)  # fmt: skip
        assert done.returncode == 0, (what, done.stderr)
        assert ("compiling" in done.stderr) == (what == "all")


ONE_POOL = """
import os, numpy as np, tinygrad_tf as tg
from tinygrad_tf import models
def refuse(*_, **__):
    raise AssertionError("a product went to BLAS, whose threads would fight with the kernels'")
np.matmul = np.dot = np.einsum = np.tensordot = refuse
def threads():
    return len(os.listdir("/proc/self/task"))
def work():
    model.loss(ids, ids).backward()
ids = np.arange(4096).reshape(64, 64) % 64
model = models.GPT(models.GPTConfig(vocab_size=64, block_size=64, n_layer=1, n_head=2, n_embd=32))
before = threads()
tg.set_num_threads(1)
work()
assert threads() == before, (before, threads())
tg.set_num_threads(2)
work()
assert threads() < before + os.cpu_count(), (before, threads())
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
def test_bc69_one_pool_of_threads() -> None:
    """BC-69: kernels use one pool, no larger than the machine; with one thread none is started; BLAS takes no part."""
    done = subprocess.run([sys.executable, "-c", ONE_POOL], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@intrinsic
def _counted(typing, array):
    """The address of what numba counts references to an array with; 0 if it counts none."""

    def generate(context, builder, signature, arguments):
        return builder.ptrtoint(context.make_array(array)(context, builder, arguments[0]).meminfo, ir.IntType(64))

    return types.int64(array), generate


@runtime.kernel
def _what_is_counted(t, n_tasks, a, out):
    out[t] = _counted(a)


@pytest.mark.parametrize("n_tasks", [1, 3])
def test_tasks_do_not_wait_for_the_count_of_references(n_tasks):
    out = np.full(n_tasks, -1)
    _what_is_counted(n_tasks, np.ones(4), out)
    np.testing.assert_array_equal(out, 0)


EDITED = """
import numpy as np
from tinygrad_tf.kernels import runtime
@runtime.kernel
def fill(t, n_tasks, a):
    for i in range(len(a)):
        a[i] = NUMBER
a = np.zeros(2)
fill(1, a)
print(a[0])
"""


def test_a_kernel_of_ones_own_is_compiled_anew_when_a_number_in_it_changes(tmp_path: Path) -> None:
    environment = {**os.environ, "TINYGRAD_TF_CACHE_DIR": str(tmp_path)}
    for number in ("2.5", "3.5"):
        done = subprocess.run([sys.executable, "-c", EDITED.replace("NUMBER", number)], env=environment,
                              capture_output=True, text=True, timeout=120)  # fmt: skip
        assert done.stdout.strip() == number, done.stderr
