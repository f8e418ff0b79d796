"""What a start costs: import, the first training step with a cold and a warm kernel cache, signatures, size on disk.

python benchmarks/startup.py [--turns 5] [--out FILE.json]
"""

from __future__ import annotations

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from sides import options, report

IMPORT = "import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
STEP = """
import time
start = time.perf_counter()
import numpy as np, tinygrad_tf as tg
from tinygrad_tf import models, optim
from tinygrad_tf.kernels import runtime
tg.set_num_threads(2)
model = models.GPT(models.GPTConfig(vocab_size=65, block_size=64, n_layer=4, n_head=4, n_embd=128))
optimizer = optim.AdamW(model.param_groups(0.1), lr=1e-3)
ids = np.random.default_rng(0).integers(0, 65, (12, 65))
model.loss(ids[:, :-1], ids[:, 1:]).backward()
optim.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
print(time.perf_counter() - start)
print(len(list(runtime.cache_folder().iterdir())))
"""


def run(code: str, **variables: str) -> list[float]:
    """The numbers that a fresh process prints."""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, check=True, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    return [float(line) for line in done.stdout.split()]


def size(package: str) -> float:
    """MB of a package's files, without compiled Python."""
    import importlib.util

    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return float("nan")
    root = pathlib.Path(next(iter(found.submodule_search_locations)))
    return sum(f.stat().st_size for f in root.rglob("*") if f.is_file() and "__pycache__" not in f.parts) / 1e6


def main() -> None:
    o = options(__doc__, turns=dict(type=int, default=5))
    modules = ("tinygrad_tf", "torch", "numpy", "numba")
    imports: dict[str, list[float]] = {m: [] for m in modules}
    for _ in range(o.turns):
        for module in modules:
            imports[module] += run(IMPORT.format(module=module))
    rows = [[f"import {m}", statistics.median(seconds), "s"] for m, seconds in imports.items()]
    with tempfile.TemporaryDirectory() as folder:
        cold, files = run(STEP, TINYGRAD_TF_CACHE_DIR=folder)
        warm = [run(STEP, TINYGRAD_TF_CACHE_DIR=folder)[0] for _ in range(o.turns)]
    rows += [
        ["import, model and first step, cold kernel cache", cold, "s"],
        ["import, model and first step, warm kernel cache", statistics.median(warm), "s"],
        ["compiled signatures of that step", files, ""],
        *([f"size of {p}", size(p), "MB"] for p in ("tinygrad_tf", "numba", "llvmlite", "numpy", "torch")),
    ]
    report(["what", "figure", "unit"], rows, o.out)


if __name__ == "__main__":
    main()
