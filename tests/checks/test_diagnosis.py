"""Each fault, planted, is found, named, and blamed on the operation that has it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F


def operation(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """An operation with a backward of one's own: `backward(g, *inputs)`."""

    class Planted(tg.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.save_for_backward(*args)
            return forward(*args)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return backward(g, *ctx.saved_tensors)

    return Planted.apply


def softmax(x: Any) -> Any:
    e = tg.exp(x - x.amax(-1, True))
    return e / e.sum(-1, True)


def numpy32(x: Any) -> Any:
    return tg.tensor(np.exp(x.numpy().astype(np.float32)).astype(np.float64))


def layer_norm(x: Any) -> Any:
    x = x.numpy()
    return tg.tensor((x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True))


def layer_norm_backward(g: Any, x: Any) -> Any:
    y = layer_norm(x)
    return (g - y * (g * y).mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)  # g.mean() is forgotten


def windows(x: Any) -> Any:
    return tg.stack([x[:, 2 * i] + 2 * x[:, 2 * i + 1] for i in range(3)], 1)


def windows_backward(g: Any, x: Any) -> Any:
    dx = np.zeros(x.shape)
    for i in range(3):
        dx[:, i] += g.numpy()[:, i]
        dx[:, i + 1] += 2 * g.numpy()[:, i]
    return tg.tensor(dx)


MASK = np.array([1.0, 0, 0, 1, 0])
TRIANGLE = np.tril(np.ones((4, 4)))
ONE_HOT = np.eye(3)[[1, 0, 2, 1]]


def last_of_repeated(g: Any, w: Any) -> Any:
    return tg.stack([g[0], g[2], g[3]])  # row 1 is read twice: the second overwrites the first


# name: (forward, backward, shapes, the diagnosis)
PLANTED: dict[str, tuple[Any, Any, list[tuple[int, ...]], str]] = {
    "a factor": (lambda x: x**2, lambda g, x: g * x, [(2, 3)], "constant factor"),
    "one percent": (lambda x: x.exp(), lambda g, x: 1.01 * g * x.exp(), [(2, 3)], "constant factor"),
    "mean for sum": (lambda x: x.sum(0), lambda g, x: (g / 4).expand(4, 3), [(4, 3)], "constant factor"),
    "sign": (lambda a, b: a - b, lambda g, a, b: (g, g), [(2, 3), (2, 3)], "wrong sign"),
    "transposed": (lambda a, b: a @ b, lambda g, a, b: (g @ b.mT, (a.mT @ g).mT), [(3, 3)] * 2, "transposed"),
    "transposed g": (lambda a, b: a @ b, lambda g, a, b: (g.mT @ b.mT, a.mT @ g), [(3, 3)] * 2, "transposed"),
    "transposed, reshaped": (lambda x: x * 2, lambda g, x: (2 * g).mT.reshape(2, 3), [(2, 3)], "transposed"),
    "zero": (lambda x: x.exp(), lambda g, x: g * 0, [(3,)], "zero gradient"),
    "None": (lambda a, b: a * b, lambda g, a, b: (g * b, None), [(3,), (3,)], "zero gradient"),
    "bias, one row": (lambda x, b: x + b, lambda g, x, b: (g, g[0]), [(4, 3), (3,)], "missing sum over a broadcast axis"),
    "scale, last": (
        lambda x, s: x * s,
        lambda g, x, s: (g * s, (g * x)[:, -1:]),
        [(4, 3), (4, 1)],
        "missing sum over a broadcast axis",
    ),
    "number, one element": (
        lambda x, s: x * s,
        lambda g, x, s: (g * s, (g * x)[0, 0]),
        [(2, 3), ()],
        "missing sum over a broadcast axis",
    ),
    "forgotten branch": (lambda x: tg.sin(x) + x @ x, lambda g, x: g * tg.cos(x), [(3, 3)], "one of several uses is missing"),
    "forgotten skip": (lambda x: x + tg.tanh(x), lambda g, x: g * (1 - tg.tanh(x) ** 2), [(4,)], "one of several uses is missing"),
    "assigned": (lambda w: w[np.array([0, 1, 1, 2])], last_of_repeated, [(3, 2)], "one of several uses is missing"),
    "softmax, other axis": (
        softmax,
        lambda g, x: softmax(x) * (g - (g * softmax(x)).sum(0, True)),
        [(3, 4)],
        "wrong axis",
    ),
    "sum, other axis": (lambda x: x.sum(0), lambda g, x: g.reshape(3, 1).expand(3, 3), [(3, 3)], "wrong axis"),
    "bias, other axis": (lambda x, b: x + b, lambda g, x, b: (g, g.sum(1)), [(3, 3), (3,)], "wrong axis"),
    "shifted": (lambda x: x * 2, lambda g, x: 2 * tg.cat([g[1:], g[:1]]), [(4, 3)], "shifted"),
    "shifted, zeros": (lambda x: x.exp(), lambda g, x: tg.cat([0 * g[:1], (g * x.exp())[:-1]]), [(4,)], "shifted"),
    "reversed": (lambda x: x.exp(), lambda g, x: (g * x.exp()).flip(0), [(4, 3)], "permuted"),
    "any order": (lambda x: x.exp(), lambda g, x: (g * x.exp())[np.array([2, 0, 3, 1])], [(4, 3)], "permuted"),
    "swapped": (lambda a, b: a * b, lambda g, a, b: (g * a, g * b), [(3,), (3,)], "swapped"),
    "ignores g": (lambda x: x * 3, lambda g, x: g * 0 + 3, [(3,)], "not linear in the incoming gradient"),
    "one row": (lambda x: x.exp(), lambda g, x: tg.cat([0.5 * (g * x.exp())[:1], (g * x.exp())[1:]]), [(4, 3)], "wrong in one place only"),
    "no mask": (tg.relu, lambda g, x: g, [(3, 4)], "missing mask"),
    "a maximum's others": (lambda x: x.amax(1), lambda g, x: g.reshape(3, 1).expand(3, 4), [(3, 4)], "missing mask"),
    "causal": (lambda x: x * TRIANGLE, lambda g, x: g, [(4, 4)], "missing mask"),
    "the wrong ones": (lambda x: x * MASK, lambda g, x: g * (1 - MASK), [(2, 5)], "inverted mask"),
    "straight through": (lambda x: tg.round(3 * x), lambda g, x: 3 * g, [(5,)], "gradient where there is none"),
    "softmax, no sum": (softmax, lambda g, x: g * softmax(x), [(3, 4)], "dropped term"),
    "cross-entropy, no target": (
        lambda x: -(tg.log(softmax(x)) * ONE_HOT).sum() / 4,
        lambda g, x: g * softmax(x) / 4,
        [(4, 3)],
        "dropped term",
    ),
    "numpy: layer norm, no mean": (layer_norm, layer_norm_backward, [(3, 5)], "dropped term"),
    "running sum": (lambda x: tg.cumsum(x, 0), lambda g, x: tg.cumsum(g, 0), [(5, 2)], "not transposed"),
    "permutation": (lambda x: x.permute(2, 0, 1), lambda g, x: g.permute(2, 0, 1), [(3, 3, 3)], "not transposed"),
    "stride": (windows, windows_backward, [(2, 6)], "misplaced"),
    "times the root": (
        lambda x: tg.sqrt(x * x + 1),
        lambda g, x: g * x * tg.sqrt(x * x + 1),
        [(4, 2)],
        "wrong slope",
    ),
    "tanh of the input": (tg.tanh, lambda g, x: g * (1 - x * x), [(5,)], "wrong slope"),
    "a branch": (F.elu, lambda g, x: g * tg.where(x > 0, 1.0, 0.1), [(9,)], "wrong slope"),
    "norms": (lambda x: tg.norm(x, dim=1), lambda g, x: g.reshape(4, 1) * x, [(4, 3)], "varying factor"),
    "size of g": (lambda x: 5 * x, lambda g, x: tg.abs(5 * g), [(5,)], "not linear in the incoming gradient"),
    "g twice": (lambda x: x * x, lambda g, x: 2 * x * g * g, [(5,)], "not linear in the incoming gradient"),
    "float32": (numpy32, lambda g, x: g * x.exp(), [(3,)], "float32 rounding"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no mask", r"through \d of 12 elements .*those up to -0.\d+, none from 0"),
        ("times the root", r"y\^2 times the right one"),
        ("a branch", r"wrong at \d of 9 elements \(those up to -0.\d+"),
        ("numpy: layer norm, no mean", r"the same at all positions along axis 1"),
        ("cross-entropy, no target", r"off by 0.25 at 4 of 12 entries, and right at the others"),
        ("forgotten branch", r"used 3 times, and the gradient through use 2 \(matmul at .* and use 3 \(matmul at"),
    ],
)
def test_the_diagnosis_says_where_to_look(name: str, sentence: str) -> None:
    forward, backward, shapes, _ = PLANTED[name]
    with pytest.raises(tg.GradcheckError, match=sentence):
        tg.gradcheck(operation(forward, backward), inputs(shapes))


@pytest.mark.parametrize(
    ("wrong", "meaning"),
    [
        (lambda x: 2 * (x - x.mean(0)) / 5, r"0.8 times .*4/5: divided by 5, where 5 - 1 belongs"),
        (lambda x: (x - x.mean(0)) * 4, r"8 times the right one \(a factor 8 too many\)"),
        (lambda x: (x - x.mean(0)) / 2 * 5**0.5, r"sqrt\(5\): a division by the root of a length of 5 is missing"),
    ],
)
def test_a_factor_is_explained(wrong: Any, meaning: str) -> None:
    with pytest.raises(tg.GradcheckError, match=meaning):
        tg.gradcheck(operation(lambda x: x.var(0), lambda g, x: g * wrong(x)), inputs([(5, 2)]))


def test_a_missing_division_by_the_output_is_explained() -> None:
    with pytest.raises(tg.GradcheckError, match="the output itself: a division by it is missing"):
        tg.gradcheck(operation(tg.norm, lambda g, x: g * x), inputs([(4,)]))


def test_swapped_outputs_are_found() -> None:
    class Two(tg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return tg.sin(x), tg.exp(x)

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            (x,) = ctx.saved_tensors
            return h * tg.cos(x) + g * tg.exp(x)

    with pytest.raises(tg.GradcheckError, match="the incoming gradients of output . and output . are taken") as caught:
        tg.gradcheck(Two.apply, inputs([(4,)]))
    assert caught.value.diagnosis == "swapped" and caught.value.operation == "Two"


def inputs(shapes: list[tuple[int, ...]]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [tg.tensor(rng.standard_normal(s), requires_grad=True) for s in shapes]


@pytest.mark.parametrize("mode", ["full", "fast"])
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_gets_its_diagnosis(name: str, mode: str) -> None:
    """BC-83: each pattern by itself."""
    forward, backward, shapes, diagnosis = PLANTED[name]
    with pytest.raises(tg.GradcheckError) as caught:
        tg.gradcheck(operation(forward, backward), inputs(shapes), mode=mode)
    assert caught.value.diagnosis == diagnosis
    assert caught.value.operation == "Planted"


@pytest.mark.parametrize("name", [n for n in PLANTED if len(PLANTED[n][2]) == 1])
def test_the_operation_is_found_among_others(name: str) -> None:
    """The fault sits in the middle of a function, and its pattern is gone at the end."""
    forward, backward, shapes, diagnosis = PLANTED[name]
    planted = operation(forward, backward)

    def function(x: Any) -> Any:
        y = tg.tanh(x) * 1.5 + 0.1
        z = planted(y)  # the line to be named
        return (tg.sin(z + 0.2) * z).sum()

    with pytest.raises(tg.GradcheckError) as caught:
        tg.gradcheck(function, inputs(shapes))
    error = caught.value
    assert error.operation == "Planted" and error.diagnosis == diagnosis
    assert "z = planted(y)  # the line to be named" in str(error)
    assert error.line is not None and error.line.startswith(__file__)


def test_right_versions_of_the_planted_operations_pass() -> None:
    for name, (forward, _, shapes, _) in PLANTED.items():
        if "numpy" not in name and name != "float32":
            assert tg.gradcheck(forward, inputs(shapes)), name


class Gate(nn.Module):
    """A gated layer, x (B, T, d_model), with a fault in a weight's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(3, 3)
        self.scale = nn.Parameter(tg.ones(3))
        self.times = operation(lambda x, s: x * s, lambda g, x, s: (g * s, (g * x)[0, 0]))

    def forward(self, x: Any) -> Any:
        return self.times(self.proj(x), self.scale)


def test_a_module_is_checked_by_name() -> None:
    tg.manual_seed(0)
    x = tg.randn(2, 2, 3, dtype=tg.float64, requires_grad=True)
    with pytest.raises(tg.GradcheckError) as caught:
        tg.gradcheck(Gate().double(), (x,))
    text = str(caught.value)
    assert "parameter scale[" in text and "right: input 0, parameter proj.weight, parameter proj.bias" in text
    assert caught.value.operation == "Planted" and caught.value.diagnosis == "missing sum over a broadcast axis"
    assert "self.times(self.proj(x), self.scale)" in text


def test_axes_have_their_names() -> None:
    from tinygrad_tf.checks.problem import axis_names

    assert axis_names(Gate(), "x", 3) == ("B", "T", "d_model")
    assert axis_names(nn.Linear(2, 3), "weight", 2) == ("out_features", "in_features")
    assert axis_names(nn.Linear(2, 3), "x", 3) == ("axis 0", "axis 1", "in_features")
    assert axis_names(lambda x: (x, x), "x", 2) == ()
    bad = operation(lambda x: x.exp(), lambda g, x: g)

    def function(x: Any) -> Any:
        return bad(x)  # x: (rows, columns)

    with pytest.raises(tg.GradcheckError, match=r"at rows = \d, columns = \d"):
        tg.gradcheck(function, inputs([(2, 3)]))


def test_the_report_has_all_its_parts() -> None:
    forward, backward, shapes, _ = PLANTED["a factor"]
    with pytest.raises(tg.GradcheckError) as caught:
        tg.gradcheck(operation(forward, backward), inputs(shapes))
    text = str(caught.value)
    for part in (
        "analytic",
        "numeric",
        "ratio 0.5",
        "where",
        "diagnosis",
        "operation",
        "error by eps",
        "1e-08",
        "flat",
    ):
        assert part in text, part


def test_the_first_line_is_enough() -> None:
    """What is wrong with which gradient, and which operation does it, called where."""
    tg.manual_seed(0)
    with pytest.raises(tg.GradcheckError) as caught:
        tg.gradcheck(nn.Sequential(nn.Linear(3, 3), Gate()).double(), inputs([(2, 2, 3)]))
    first = str(caught.value).splitlines()[0]
    assert first.startswith(
        "gradcheck: the gradient is wrong: parameter 1.scale: missing sum over a broadcast axis; by Planted"
    )
    assert re.search(r"in module 1, called at .*test_diagnosis.py:\d+$", first)


def test_the_error_against_eps_shows_truncation_and_rounding() -> None:
    from tinygrad_tf.checks.differences import Ladder, Move
    from tinygrad_tf.checks.problem import Problem

    def errors(f: Any, at: float, slope: float) -> list[float]:
        with Problem(f, [tg.tensor(np.array([at]), requires_grad=True)], "test") as problem:
            ladder = Ladder(Move(problem, problem.leaves[0], 0), problem.values(), 0.0)
        return [abs(c - slope) for _, c in ladder.decades(0)]

    curved, straight = errors(tg.exp, 0.3, np.exp(0.3)), errors(lambda x: 3 * x, 0.3, 3.0)
    assert 80 < curved[0] / curved[1] < 120 and 80 < curved[1] / curved[2] < 120  # truncation: eps^2
    assert curved[-1] > 1e3 * min(curved)  # rounding: 1/eps
    assert straight[0] < 1e-12  # linear functions have no truncation


@pytest.mark.parametrize(
    ("function", "at"),
    [
        (lambda x: tg.relu(x).sum(), [0.0, 1.0, -2.0]),
        (lambda x: tg.clamp(x, 0, 1), [1.0, 0.3]),
        (lambda x: tg.relu(x * 2) @ tg.tensor(np.ones(2)), [0.0, 3.0]),
        (lambda x: x.max(0)[0], [1.0, 1.0]),
    ],
)
def test_a_kink_is_called_a_kink(function: Any, at: list[float]) -> None:
    """BC-49, BC-83: at a kink nothing is accused."""
    with pytest.raises(tg.GradcheckError, match="(?s)cannot be judged here.*a kink at this point") as caught:
        tg.gradcheck(function, [tg.tensor(np.array(at), requires_grad=True)])
    assert "is wrong" not in str(caught.value)
    assert caught.value.operation in ("relu", "clamp", None)  # an index that jumps is nobody's rule


def test_digits_that_cancel_are_no_wrong_rule() -> None:
    """(1 - cos x) / x^2 near 0: rounding alone makes its gradient, and the differences, wrong."""
    x = tg.tensor(np.array([1e-3, 1e-4, 0.5]), requires_grad=True)
    with pytest.raises(tg.GradcheckError, match="cannot be judged here") as caught:
        tg.gradcheck(lambda x: (1 - tg.cos(x)) / (x * x), x)
    assert caught.value.diagnosis == "cancellation" and "the output of" in str(caught.value)
    assert tg.gradcheck(lambda x: 2 * tg.sin(x / 2) ** 2 / (x * x), x)  # the remedy


def test_a_wrong_rule_beside_a_kink_is_still_wrong() -> None:
    bad = operation(lambda x: tg.relu(x), lambda g, x: 2 * g * (x > 0))
    with pytest.raises(tg.GradcheckError) as caught:
        tg.gradcheck(bad, [tg.tensor(np.array([0.0, 1.0, 2.0]), requires_grad=True)])
    assert "the gradient is wrong" in str(caught.value) and caught.value.operation == "Planted"


def test_a_jump_is_called_a_jump() -> None:
    with pytest.raises(tg.GradcheckError, match="a jump at this point"):
        tg.gradcheck(lambda x: tg.where(x > 0, x + 1, x), [tg.tensor(np.array([0.0, 1.0]), requires_grad=True)])


def test_a_random_operation_is_named() -> None:
    with pytest.raises(tg.GradcheckError) as caught:
        tg.gradcheck(lambda x: tg.exp(F.dropout(x, 0.5, True)), inputs([(30,)]))
    assert caught.value.diagnosis == "not deterministic" and caught.value.operation == "dropout"


def test_a_backward_that_changes_what_it_saved_is_found() -> None:
    class Spoils(tg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.kept = x.numpy().copy()
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            result = 2 * g * tg.tensor(ctx.kept)
            ctx.kept *= 0.5
            return result

    with pytest.raises(tg.GradcheckError, match="backward is not deterministic") as caught:
        tg.gradcheck(lambda x: tg.sin(Spoils.apply(tg.exp(x))), inputs([(3,)]))
    assert caught.value.operation == "Spoils"


def test_a_backward_that_writes_into_its_argument_is_found() -> None:
    class Spoils(tg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            g *= 2
            return g

    for function in (Spoils.apply, lambda x: tg.sin(x) + Spoils.apply(tg.exp(x))):
        with pytest.raises(tg.GradcheckError, match="wrote into the gradient") as caught:
            tg.gradcheck(function, inputs([(3,)]))
        assert caught.value.operation == "Spoils"


def test_float32_inside_is_named() -> None:
    """BC-81: a round trip through float32 is no fault of the gradient."""
    with pytest.raises(tg.GradcheckError, match="float32 rounding") as caught:
        tg.gradcheck(lambda x: tg.exp(x.float()).double(), inputs([(3,)]))
    assert caught.value.operation == "astype"


def test_a_fault_in_float32_is_still_a_fault() -> None:
    bad = operation(numpy32, lambda g, x: 1.5 * g * x.exp())
    with pytest.raises(tg.GradcheckError, match="the gradient is wrong"):
        tg.gradcheck(bad, inputs([(3,)]), eps=1e-3)


def test_a_function_that_ignores_its_argument_is_found() -> None:
    (x,) = inputs([(3,)])
    with pytest.raises(tg.GradcheckError, match="from outside"):
        tg.gradcheck(lambda _: x * 2, [x])


def test_a_tiny_loss_with_a_wrong_gradient_is_found() -> None:
    """The tolerance is no hiding place: it shrinks with the gradient."""
    bad = operation(lambda x: x**2, lambda g, x: g * x)
    with pytest.raises(tg.GradcheckError):
        tg.gradcheck(lambda x: 1e-7 * bad(x).sum(), inputs([(3,)]))


def test_a_forgotten_output_is_named() -> None:
    class Two(tg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.sin(), x.cos()

        @staticmethod
        def backward(ctx: Any, a: Any, b: Any) -> Any:
            (x,) = ctx.saved_tensors
            return a * x.cos()

    def product(x: Any) -> Any:
        a, b = Two.apply(x)
        return a * b + b

    with pytest.raises(tg.GradcheckError, match="zero gradient: .* output 1 does change with x") as caught:
        tg.gradcheck(product, inputs([(3,)]))
    assert caught.value.operation == "Two"


def test_a_wrong_rule_of_the_package_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinygrad_tf.ops import elementwise

    (_, names), *_ = elementwise.tanh.rules
    monkeypatch.setattr(elementwise.tanh, "rules", [(lambda g, out: g * (1.0 - out), names)])
    with pytest.raises(tg.GradcheckError) as caught:
        tg.gradcheck(lambda x: (tg.tanh(x * 2) * x).sum(), inputs([(3,)]))
    assert caught.value.operation == "tanh"


def test_an_engine_that_assigns_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation is right, and one of two uses is overwritten."""
    from tinygrad_tf import graph

    def assign(self: Any, value: Any, own: bool) -> None:
        self.value, self.own = value, own

    monkeypatch.setattr(graph._Pending, "add", assign)
    with pytest.raises(tg.GradcheckError) as caught:
        tg.gradcheck(lambda x: tg.exp(x) * x, inputs([(3,)]))
    assert caught.value.diagnosis == "one of several uses is missing" and caught.value.operation is None


def test_a_gradient_that_is_not_finite_is_found() -> None:
    with pytest.raises(tg.GradcheckError) as caught:
        tg.gradcheck(lambda x: tg.sqrt(x * 0) + x, inputs([(3,)]))
    assert caught.value.diagnosis == "not finite" and caught.value.operation == "sqrt"


def test_a_fault_in_very_many_elements_is_explained_by_a_sample() -> None:
    bad = operation(lambda x: x**3, lambda g, x: g * x * x)
    for function in (lambda x: bad(x).sum(), bad):
        with pytest.raises(tg.GradcheckError, match="random sample") as caught:
            tg.gradcheck(function, inputs([(5000,)]), mode="fast")
        assert caught.value.operation == "Planted" and caught.value.diagnosis == "constant factor"


def test_the_layer_is_named() -> None:
    tg.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.Residual(Gate())).double()
    with pytest.raises(tg.GradcheckError, match=r"Planted in module 1\.f, called at"):
        tg.gradcheck(module, tg.randn(2, 2, 3, dtype=tg.float64, requires_grad=True), mode="fast")
    assert not module._forward_hooks and not module[0]._forward_pre_hooks
