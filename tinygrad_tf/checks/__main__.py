"""`python -m tinygrad_tf.checks FILE::NAME`: check the gradients of a module or function in a file of yours.

NAME is a module (a class or an object), a `tg.Function`, a function of Tensors, or a function without arguments that
returns what to check as `(fn, inputs)`.

    python -m tinygrad_tf.checks layers.py::Gate --init 4,6 --input 2,3,4
    python -m tinygrad_tf.checks layers.py::softsign
    python -m tinygrad_tf.checks model.py::Model --init 50 --input "2,5<50"
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tinygrad_tf as tg


class Refusal(Exception):
    """The command cannot be carried out as it was given."""


def load(target: str) -> Any:
    """The object that `FILE::NAME` names."""
    file, found, name = target.partition("::")
    path = Path(file)
    if not found or not name:
        raise Refusal(f"expected FILE::NAME, such as layers.py::Gate, got {target!r}")
    if not path.is_file():
        raise Refusal(f"there is no file {file!r}")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise Refusal(f"{file!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            names = ", ".join(n for n, v in vars(module).items() if not n.startswith("_") and callable(v))
            raise Refusal(f"{file} has no {name!r}; it has: {names}")
        value = getattr(value, part)
    return value


def literals(text: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, written as in Python: `4, n_heads=2`."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        return (
            [ast.literal_eval(a) for a in call.args],
            {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg},
        )
    except (SyntaxError, ValueError, AssertionError):
        raise Refusal(f"--init: expected plain Python values, such as `4, n_heads=2`, got {text!r}") from None


def given_input(text: str, generator: np.random.Generator) -> Any:
    """`2,3,4`: random float64 numbers of that shape; `2,3<10`: integers below 10."""
    found = re.fullmatch(r"\(?([\d, ]*)\)?(?:<(\d+))?", text.strip())
    if found is None:
        raise Refusal(f"--input: expected a shape such as 2,3,4, or 2,3<10 for integers below 10, got {text!r}")
    shape = tuple(int(n) for n in found[1].split(",") if n.strip())
    if found[2]:
        return tg.tensor(generator.integers(0, int(found[2]), shape))
    return tg.tensor(generator.standard_normal(shape), requires_grad=True)


def prepared(value: Any, init: str) -> Any:
    """Something to call: a class of modules is made, a Function applied, parameters are float64."""
    if inspect.isclass(value) and issubclass(value, tg.Function):
        return value.apply
    if inspect.isclass(value):
        args, kwargs = literals(init)
        try:
            value = value(*args, **kwargs)
        except TypeError as error:
            if args or kwargs:
                raise
            raise Refusal(f"{error}; give its arguments with --init") from None
    if not callable(value):
        raise Refusal(f"expected a module or a function, got {type(value).__name__}")
    return value.double() if hasattr(value, "named_parameters") else value


def arity(fn: Any) -> int:
    """How many arguments it needs."""
    target = fn.forward if hasattr(fn, "named_parameters") else fn
    owner = getattr(fn, "__self__", None)
    if inspect.isclass(owner) and issubclass(owner, tg.Function):
        target = owner.forward
        return max(1, len(inspect.signature(target).parameters) - 1)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in inspect.signature(target).parameters.values() if p.kind in kinds and p.default is p.empty]
    return len(needed)


def guesses(fn: Any) -> Iterator[tuple[int, ...]]:
    """Shapes that may fit."""
    if hasattr(fn, "named_parameters"):
        sizes = dict.fromkeys(n for _, p in fn.named_parameters() for n in reversed(p.shape))
        for n in itertools.islice(sizes, 6):
            yield from ((2, 3, n), (2, n), (n,))
    yield from ((2, 3), (3, 3), (2, 3, 4), (4,), (1, 2, 4, 4))


def fitting_inputs(fn: Any, generator: np.random.Generator) -> list[Any]:
    """Random inputs of the first shape with which the function runs."""
    for shape in guesses(fn):
        inputs = [tg.tensor(generator.standard_normal(shape), requires_grad=True) for _ in range(arity(fn))]
        try:
            fn(*(i * 1.0 for i in inputs))
            return inputs
        except (ValueError, TypeError, IndexError, RuntimeError):
            continue
    raise Refusal("no shape that was tried fits; give one for each input: --input 2,3,4")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: 0 if the gradients are right, 1 if not, 2 if it cannot be told."""
    parser = argparse.ArgumentParser(
        prog="python -m tinygrad_tf.checks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", metavar="FILE::NAME")
    parser.add_argument("--init", default="", help="the arguments of a class, as in Python: 4,6 or '4, bias=False'")
    parser.add_argument(
        "--input", action="append", help="the shape of an input, 2,3,4, or 2,3<10 for integers; repeat it"
    )
    parser.add_argument("--mode", choices=("full", "fast"), default="full")
    parser.add_argument("--second", action="store_true", help="check second derivatives too")
    parser.add_argument("--eps", type=float, default=1e-6)
    parser.add_argument("--atol", type=float, default=1e-5)
    parser.add_argument("--rtol", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    tg.manual_seed(options.seed)
    generator = np.random.default_rng(options.seed)
    try:
        fn = prepared(load(options.target), options.init)
        if not hasattr(fn, "named_parameters") and arity(fn) == 0 and not options.input:
            fn, inputs = fn()
            inputs = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        elif options.input:
            inputs = [given_input(text, generator) for text in options.input]
        else:
            inputs = fitting_inputs(fn, generator)
    except Refusal as refusal:
        print(f"checks: {refusal}", file=sys.stderr)
        return 2
    settings = {k: getattr(options, k) for k in ("eps", "atol", "rtol", "mode")}
    try:
        tg.gradcheck(fn, inputs, **settings)
        if options.second:
            tg.gradgradcheck(fn, inputs, **settings)
    except tg.GradcheckError as error:
        print(error)
        return 1
    except (TypeError, ValueError, RuntimeError) as error:
        print(f"checks: {options.target} cannot be checked: {error}", file=sys.stderr)
        return 2
    shapes = ", ".join(str(i.shape) if isinstance(i, tg.Tensor) else type(i).__name__ for i in inputs)
    count = f" and {fn.num_parameters():,} parameters" if hasattr(fn, "num_parameters") else ""
    print(f"{options.target}: the gradients are right, for inputs {shapes}{count}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
