"""The mutation runner itself: there are mutants of every rule, and exchanging code changes what runs."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import tinygrad_tf as tg
from tinygrad_tf.ops import primitive


def loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def mutants() -> Any:
    return loaded("mutants")


def test_every_rule_has_at_least_three_mutants(mutants: Any) -> None:
    found = mutants.all_mutants()
    assert len(found) > 60
    assert all(len(of_rule) >= 3 for of_rule in found.values()), {r: len(m) for r, m in found.items() if len(m) < 3}
    names = {rule.split()[1] for rule in found}
    assert {"exp.x", "mul.a", "mul.b", "_matmul.a", "sum.x"} <= names
    flat = {
        "sign",
        "floor",
        "ceil",
        "round",
        "trunc",
        "frac",
        "deg2rad",
        "rad2deg",
    }  # zero or one constant: nothing to mutate
    for operation in vars(tg).values():  # every operation with rules that users see
        named = getattr(operation, "name", "") not in flat
        if isinstance(operation, primitive.Primitive) and operation.inputs and not operation.promote and named:
            assert any(n.startswith(operation.function.__name__ + ".") for n in names), operation


def test_every_mutant_is_python(mutants: Any) -> None:
    for of_rule in mutants.all_mutants().values():
        for mutant in of_rule:
            source = (mutants.PACKAGE / mutant.file).read_bytes()
            ast.parse(source[: mutant.start] + mutant.text.encode() + source[mutant.end :])


def test_a_mutant_runs_in_the_place_of_the_rule(mutants: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    run = loaded("run")
    (sign, *_) = mutants.all_mutants()["ops/elementwise.py sin.x"]
    x = tg.tensor([0.3], requires_grad=True)

    def slope() -> float:
        return float(tg.grad(tg.sin(x), x)[0].item())

    right = slope()
    rule = tg.sin.rules[0][0]
    code = rule.__code__
    try:
        run.exchange(sign.file, [(sign.start, sign.end, sign.text)])
        assert slope() == -right
    finally:
        rule.__code__ = code
    assert slope() == right


def test_kernels_that_a_backward_is_part_of(mutants: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    run = loaded("run")
    assert "normalization._norm_backward" in run.kernels_with("kernels/normalization.py", "norm_backward_row")
    assert "attention_backward.backward_tiles" in run.kernels_with("kernels/attention_tile.py", "accumulate")
    found = run.kernels_with("kernels/normalization.py", "_norm_gradient")
    assert found == {"normalization._norm_backward", "normalization._over_blocks"}
