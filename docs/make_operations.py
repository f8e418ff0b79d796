"""Writes docs/operations.md: every operation, and what running its cases shows about its derivatives and kernels.

python docs/make_operations.py           writes the page
python docs/make_operations.py --check   exits with 1 if the page is not current
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

import tinygrad_tf as tg
from tinygrad_tf.nn import functional as F
from tinygrad_tf.ops import table
from tinygrad_tf.ops.primitive import Fused

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "operations.md"
_KERNEL_PRODUCTS = ("matmul",)


def load_cases() -> Any:
    """The table of cases that the tests run."""
    spec = importlib.util.spec_from_file_location("operation_cases", ROOT / "tests" / "ops" / "operation_cases.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def measure(cases: Any, found: list[Any], name: str) -> tuple[str, str, str]:
    """(gradient, higher orders, computed by) as the first cases of the operation show them."""
    gradient = orders = False
    by = "numpy"
    for case in [c for c in found if c.name == name and all(n != 0 for shape in c.shapes for n in shape)][:3]:
        inputs = [tg.tensor(v, requires_grad=True) for v in cases.values(case)]
        with tg.graph.record() as records:
            outs = [o for o in cases.run(case, tg, F, inputs) if isinstance(o, tg.Tensor)]
        if any(isinstance(r.op, Fused) or r.op.name in _KERNEL_PRODUCTS for r in records):
            by = "kernel"
        for out in outs:
            if not out.requires_grad:
                continue
            gradient = True
            slopes = tg.grad(out.sum(), inputs, create_graph=True, allow_unused=True)
            live = [(g * g).sum() for g in slopes if g is not None and g.requires_grad]
            if live:  # else the gradient is constant
                tg.grad(live, inputs, [None] * len(live), allow_unused=True)
            orders = True
    return "yes" if gradient else "no", "yes" if gradient and orders else "-", by


def page() -> str:
    """The whole page."""
    cases = load_cases()
    found = cases.cases()
    lines = [
        "# Operations",
        "",
        "Written by `docs/make_operations.py`, which runs the cases of `tests/ops/operation_cases.py`. Names, arguments and",
        "semantics are PyTorch's, except where a docstring says so. Gradient: there is one; higher orders: it can be",
        "differentiated again with `create_graph=True`, any number of times; computed by: a kernel of ours or numpy.",
    ]
    functional = {n: getattr(F, n) for n in F.__all__ if n not in table.METHODS and not n.endswith("_")}
    in_place = set(table.IN_PLACE)
    for title, operations, call in (
        ("Functions `tg.f(x, ...)` and methods `x.f(...)`", table.METHODS, "method"),
        ("Functions only, `tg.f(...)`", table.FUNCTIONS, "function"),
        ("`nn.functional`", functional, "function"),
    ):
        lines += [
            "",
            f"## {title}",
            "",
            "| operation | computes | gradient | higher orders | computed by |",
            "|---|---|---|---|---|",
        ]
        for name in sorted(operations):
            if name in table.ALIASES:
                lines.append(f"| `{name}` | another name of `{table.ALIASES[name]}` | | | |")
                continue
            function = operations[name]
            first = (function.__doc__ or "").strip().split("\n")[0].replace("|", "\\|")
            shown = f"`{name}`" + (f", `{name}_`" if call == "method" and name in in_place else "")
            lines.append(f"| {shown} | {first} | {' | '.join(measure(cases, found, name))} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or check it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print(
            "docs/operations.md is current"
            if current
            else "docs/operations.md is old: run python docs/make_operations.py"
        )
        return 0 if current else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
