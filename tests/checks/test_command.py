"""`python -m tinygrad_tf.checks FILE::NAME`, and the pytest plugin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tinygrad_tf.checks.__main__ import main

LAYERS = """
import tinygrad_tf as tg
from tinygrad_tf import nn


class Good(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.down(tg.tanh(self.up(x)))


class Double(tg.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 4 * g


class Bad(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return Double.apply(self.linear(x))


class Words(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.table = nn.Embedding(vocab, 4)

    def forward(self, ids):
        return self.table(ids) ** 2


def swish(x):
    return x * tg.sigmoid(x)


def a_case():
    return (lambda x, n: x**n), [tg.randn(3, dtype=tg.float64, requires_grad=True), 3]


number = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "user_layers.py"
    path.write_text(LAYERS)
    return path


@pytest.mark.parametrize(
    ("name", "options", "code", "text"),
    [
        ("Good", ["--init", "4,6", "--input", "2,3,4"], 0, r"right, for inputs \(2, 3, 4\) and 58 parameters"),
        ("Good", ["--init", "4, inner=6"], 0, "are right"),
        ("Good", [], 2, "--init"),
        ("Bad", [], 1, "constant factor: the analytic gradient is 2 times"),
        ("Bad", ["--mode", "fast"], 1, "Double, called at .*user_layers.py:31"),
        ("Double", [], 1, "constant factor"),
        ("Words", ["--init", "5", "--input", "2,3<5"], 0, "are right"),
        ("swish", ["--second"], 0, "are right"),
        ("a_case", [], 0, "are right"),
        ("number", [], 2, "expected a module or a function"),
        ("nothing", [], 2, "it has: .*swish"),
        ("swish", ["--input", "two"], 2, "expected a shape"),
    ],
)
def test_the_command(name: str, options: list[str], code: int, text: str, file: Path, capsys: Any) -> None:
    import re

    assert main([f"{file}::{name}", *options]) == code
    said = capsys.readouterr()
    assert re.search(text, said.out + said.err), said.out + said.err


def test_the_plugin(file: Path) -> None:
    (file.parent / "conftest.py").write_text('pytest_plugins = "tinygrad_tf.checks.pytest_plugin"\n')
    (file.parent / "test_user.py").write_text(
        "import tinygrad_tf as tg\nfrom user_layers import Bad, Good\n\n\n"
        "def test_good(gradcheck, gradgradcheck):\n"
        "    x = tg.randn(2, 4, dtype=tg.float64, requires_grad=True)\n"
        "    assert gradcheck(Good(4, 6).double(), x) and gradgradcheck(tg.exp, x)\n\n\n"
        "def test_bad(gradcheck):\n"
        "    gradcheck(Bad().double(), tg.randn(2, 3, dtype=tg.float64, requires_grad=True))\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--gradcheck-mode=fast", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, timeout=300)
    assert "1 failed, 1 passed" in result.stdout, result.stdout + result.stderr
    assert "diagnosis      constant factor" in result.stdout
    assert "test_bad: constant factor, in Double at" in result.stdout
    assert "compare.py" not in result.stdout  # none of this package's inside
