"""Every operation of the table: first and second derivatives against central differences, and what holds for all of them:
functions and methods agree, ndarrays give ndarrays, layouts and dtypes do not matter, inputs stay as they were."""

from __future__ import annotations

import importlib.util
import pathlib
import zlib
from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf.nn import functional as F
from tinygrad_tf.ops.table import FUNCTIONS, IN_PLACE, METHODS

_spec = importlib.util.spec_from_file_location(
    "operation_cases", pathlib.Path(__file__).with_name("operation_cases.py")
)
table = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(table)
CASES = table.cases()
pytestmark = pytest.mark.filterwarnings("ignore:.*kink.*")


def layout(array: Any, which: int) -> Any:
    """The same numbers in memory of another order: transposed, every second element, backwards, read-only."""
    if array.ndim == 0 or array.size == 0:
        return array
    if which % 4 == 0:
        return np.ascontiguousarray(array.T).T
    if which % 4 == 1:
        doubled = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
        doubled[..., ::2] = array
        return doubled[..., ::2]
    if which % 4 == 2:
        return array[::-1].copy()[::-1]
    frozen = array.copy()
    frozen.flags.writeable = False
    return frozen


class AsMethods:
    """The package, but every operation that is a method is called as one."""

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            return getattr(tg, name)
        return lambda x, *args, **options: getattr(x if isinstance(x, tg.Tensor) else tg, name)(
            *(() if isinstance(x, tg.Tensor) else (x,)), *args, **options
        )


def same(outs: list[Any], wanted: list[Any], **tolerance: Any) -> None:
    assert len(outs) == len(wanted)
    for out, other in zip(outs, wanted, strict=True):
        out, other = np.asarray(out), np.asarray(other)
        assert out.shape == other.shape
        np.testing.assert_allclose(out, other, **(tolerance or {"rtol": 1e-12, "atol": 1e-14}))


def run(case: Any, tensors: list[Any], package: Any = tg) -> list[Any]:
    out = table.run(case, package, F, tensors)
    return [o.detach() if isinstance(o, tg.Tensor) else o for o in out]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_derivatives(case: Any) -> None:
    """BC-22, BC-46, BC-83: random cotangents, every order, gradients in the inputs' shapes."""
    inputs = [tg.tensor(v, requires_grad=True) for v in table.values(case)]
    found = table.run(case, tg, F, inputs)
    places = [n for n, o in enumerate(found) if isinstance(o, tg.Tensor) and o.requires_grad]
    outs = [found[n] for n in places]

    def function(*tensors: Any) -> Any:
        results = table.run(case, tg, F, list(tensors))
        return [results[n] for n in places]

    if outs and "padding_idx" not in case.expression:  # the padding row has no gradient on purpose
        assert tg.gradcheck(function, inputs, mode="fast")
        if case.first:  # parity with PyTorch looks at the second derivatives of the other shapes
            assert tg.gradgradcheck(function, inputs, mode="fast")
        for x, g in zip(inputs, tg.grad(outs, inputs, [o.detach() for o in outs], allow_unused=True), strict=True):
            assert g is None or (g.shape == x.shape and g.dtype == x.dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_holds_for_all(case: Any) -> None:
    data = table.values(case)
    before = [v.copy() for v in data]
    inputs = [tg.from_numpy(v) for v in data]
    wanted = run(case, inputs)
    same([v for v in data], before, rtol=0)  # inputs are never changed
    same(run(case, inputs, AsMethods()), wanted)
    which = zlib.crc32(case.expression.encode())
    same(run(case, [tg.from_numpy(layout(v, which + i)) for i, v in enumerate(data)]), wanted)
    dtypes = {o.dtype for o in run(case, [x.float() for x in inputs]) if isinstance(o, tg.Tensor)}
    assert np.float64 not in dtypes or case.name == "float_power" or "f(" in case.expression  # BC-01
    if not any(s in case.expression for s in ("a.", "b.", "i(", "m(", "linalg", "a[", "f(")):
        arrays = table.run(case, tg, F, data)
        assert not any(isinstance(o, tg.Tensor) for o in arrays)
        same(arrays, wanted)


def test_every_operation_has_a_case() -> None:
    named = " ".join(case.expression for case in CASES)
    missing = [n for n in (*METHODS, *FUNCTIONS, *F.__all__) if f".{n}(" not in named]
    assert set(missing) <= {"reduce_", "multi_dot", "vector_norm"}, missing


def test_the_page_of_operations_is_current() -> None:
    """docs/operations.md says what the code does; `python docs/make_operations.py` writes it."""
    docs = pathlib.Path(__file__).parents[2] / "docs"
    spec = importlib.util.spec_from_file_location("make_operations", docs / "make_operations.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == (docs / "operations.md").read_text(encoding="utf-8"), "run python docs/make_operations.py"


@pytest.mark.parametrize("name", sorted(set(IN_PLACE)))
def test_in_place_forms(name: str) -> None:
    """x.f_(...) writes what x.f(...) gives, into the same memory, and is differentiated the same."""
    case = next(
        c for c in CASES
        if c.expression.startswith(f"t.{name}(a") and c.expression.count("t.") == 1 and c.shapes and c.shapes[0]
        and np.broadcast_shapes(c.shapes[0]) == np.shape(run(c, [tg.tensor(v) for v in table.values(c)])[0])
    )  # fmt: skip
    data = table.values(case)
    inputs = [tg.tensor(v, requires_grad=True) for v in data]
    copy = inputs[0] * 1.0
    memory = copy.detach()
    changed = table.run(case._replace(expression=case.expression.replace(f"t.{name}(a", f"a.{name}_(", 1).replace("(, ", "(")),
                        tg, F, [copy, *inputs[1:]])  # fmt: skip
    assert changed[0] is copy
    outs = table.run(case, tg, F, inputs)
    if outs[0].dtype == np.float64:
        same([memory], [outs[0].detach()])
    if outs[0].requires_grad:
        seed = np.random.default_rng(1).standard_normal(outs[0].shape)
        wanted = tg.grad(outs[0], inputs, seed, allow_unused=True)
        for g, w in zip(tg.grad(copy, inputs, seed, allow_unused=True), wanted, strict=True):
            assert (g is None and w is None) or np.allclose(g.numpy(), w.numpy())


def test_integers_and_booleans() -> None:
    x = tg.tensor([[3, 1, 2], [0, 5, 4]])
    assert x.sort().values.tolist() == [[1, 2, 3], [0, 4, 5]] and x.sort().values.dtype == np.int64
    assert x.cumprod(1).tolist() == [[3, 3, 6], [0, 0, 0]] and x.prod((0, 1)).item() == 0
    assert x.diff().tolist() == [[-2, 1], [5, -1]] and x.trace().item() == 8
    assert x.exp2().dtype == np.float32 and x.double().dtype == np.float64 and x.bool().double().dtype == np.float64
    assert x.div(tg.tensor(2), rounding_mode="floor").dtype == np.int64 and x.fmod(2).dtype == np.int64
    assert (~tg.tensor([True, False])).tolist() == [False, True] and (~x).tolist() == [[-4, -2, -3], [-1, -6, -5]]
    assert tg.scatter_add(x, 1, tg.tensor([[0, 0]]), tg.tensor([[10, 10]])).tolist() == [[23, 1, 2], [0, 5, 4]]
    assert tg.einsum("ij,kj->ik", x, x).tolist() == [[14, 13], [13, 41]] and x.median().item() == 2
    assert x.cummax(1).values.tolist() == [[3, 3, 3], [0, 5, 5]] and tg.triu(x > 0).dtype == np.bool_


def test_named_results() -> None:
    x = tg.tensor([[1.0, 3.0, 2.0]])
    assert x.max(1).indices.tolist() == [1] and x.topk(2).values.tolist() == [[3.0, 2.0]]
    assert x.aminmax().min.item() == 1.0 and x.median(1).values.item() == 2.0


# -- values by hand: the policies and the corners ----------------------------------------------------------------------


def slope(function: Any, *values: Any) -> list[Any]:
    """The gradients of the sum of function(x)."""
    inputs = [tg.tensor(v, dtype=np.float64, requires_grad=True) for v in values]
    return [g.tolist() for g in tg.grad(function(*inputs).sum(), inputs)]


def test_bc15_ties() -> None:
    """BC-15: over everything ties share; along an axis the first is chosen; the sum of the gradient is kept."""
    assert slope(lambda x: x.median(), [1.0, 2.0, 2.0, 3.0]) == [[0.0, 0.5, 0.5, 0.0]]
    assert slope(lambda x: x.aminmax().min, [1.0, 1.0, 2.0]) == [[0.5, 0.5, 0.0]]
    assert slope(lambda x: x.sort(0, descending=True).values[0], [2.0, 2.0, 1.0]) == [[1.0, 0.0, 0.0]]
    assert tg.topk(tg.tensor([2.0, 2.0, 2.0]), 2).indices.tolist() == [0, 1]
    assert tg.argsort(tg.tensor([1.0, 2.0, 1.0]), descending=True).tolist() == [1, 0, 2]
    assert slope(tg.fmax, [2.0], [2.0]) == [[1.0], [0.0]] and slope(tg.fmin, [2.0], [2.0]) == [[1.0], [0.0]]
    assert tg.cummax(tg.tensor([1.0, 1.0, 0.0]), 0).indices.tolist() == [0, 1, 1]
    assert slope(lambda x, s: tg.scatter_reduce(x, 0, tg.tensor([0, 0]), s, "amax"), [2.0], [2.0, 1.0]) == [
        [0.5],
        [0.5, 0.0],
    ]


@pytest.mark.parametrize(
    ("x", "wanted"),
    [([0, 2, 3], [6, 0, 0]), ([0, 0, 3], [0, 0, 0]), ([2, 0, 3, 4], [0, 24, 0, 0]), ([0], [1]), ([], [])],
)
def test_bc17_prod(x: list[float], wanted: list[float]) -> None:
    """BC-17: the product's gradient with zeros."""
    assert slope(lambda x: x.prod(0), x) == [wanted]


@pytest.mark.parametrize(
    ("x", "wanted"),
    [
        ([0, 2, 3], [9, 0, 0]),
        ([2, 3, 0], [4, 2, 6]),
        ([2, 0, 0, 3], [1, 2, 0, 0]),
        ([2, 0, 3, 4], [1, 32, 0, 0]),
        ([5], [1]),
    ],
)
def test_bc17_cumprod(x: list[float], wanted: list[float]) -> None:
    """BC-17: the running product's gradient with zeros."""
    assert slope(lambda x: x.cumprod(0), x) == [wanted]


def test_bc18_norms_at_zero() -> None:
    """BC-18: the subgradient of every norm at 0 is 0."""
    for p in (0.5, 1, 1.5, 2, 3, float("inf"), 0):
        assert slope(lambda x, p=p: x.norm(p), [0.0, 0.0]) == [[0.0, 0.0]]
    assert slope(lambda x: F.normalize(x, dim=0), [0.0, 0.0])[0] == [1e12, 1e12]
    assert slope(tg.hypot, [0.0], [0.0]) == [[0.0], [0.0]] and slope(tg.atan2, [0.0], [0.0]) == [[0.0], [0.0]]
    assert np.isfinite(slope(lambda x, y: F.cosine_similarity(x, y, 0), [0.0, 0.0], [1.0, 2.0])).all()


def test_bc47_infinities() -> None:
    """BC-47: running and pairwise sums of exponentials with infinities."""
    inf = float("inf")
    assert tg.logcumsumexp(tg.tensor([-inf, -inf, 0.0]), 0).tolist() == [-inf, -inf, 0.0]
    assert slope(lambda x: tg.logcumsumexp(x, 0)[2], [-inf, -inf, 0.0]) == [[0.0, 0.0, 1.0]]
    assert slope(tg.logaddexp, [-inf, 1e4], [-inf, 0.0]) == [[0.5, 1.0], [0.5, 0.0]]
    assert slope(lambda x: F.elu(x), [1e4, -1e4]) == [[1.0, 0.0]]
    assert F.softplus(tg.tensor([-1e4, 1e4])).tolist() == [0.0, 1e4]
    assert F.logsigmoid(tg.tensor([-1e4, 1e4])).tolist() == [-1e4, 0.0]


def test_bc49_kinks() -> None:
    """BC-49: slopes on the bounds, PyTorch's."""
    x = [-3.0, 3.0, 0.0, 1.0, -1.0, 6.0]
    assert slope(F.relu6, x) == [[0, 1, 0, 1, 0, 0]] and slope(F.hardtanh, x) == [[0, 0, 1, 0, 0, 0]]
    assert slope(F.hardswish, x)[0][:3] == [0, 1, 0.5] and slope(F.hardsigmoid, x)[0][:2] == [0, 0]
    assert (
        slope(F.leaky_relu, [0.0]) == [[0.01]]
        and slope(F.elu, [0.0]) == [[1.0]]
        and slope(F.softplus, [0.0]) == [[0.5]]
    )
    assert slope(F.logsigmoid, [0.0]) == [[0.5]] and slope(lambda x: tg.clamp(x, 0, tg.tensor(1.0)), [0.0, 1.0]) == [
        [1, 1]
    ]
    assert slope(lambda x: F.binary_cross_entropy_with_logits(x, tg.zeros(1).double()), [0.0]) == [[0.5]]
    for f in (F.relu6, F.hardtanh, F.leaky_relu, F.elu, F.hardswish, F.hardsigmoid, F.softplus, F.mish):
        assert np.isnan(f(tg.tensor([float("nan")])).item()), f


def test_bc50_one_element() -> None:
    """BC-50: the variance of one element is NaN, the biased one 0."""
    assert np.isnan(tg.var_mean(tg.tensor([5.0]))[0].item())
    assert slope(lambda x: tg.std_mean(x, unbiased=False)[0], [5.0]) == [[0.0]]


def test_bc84_dims() -> None:
    """BC-84: an axis twice, or one that is not there, is an error; a tuple and negative ones are fine."""
    x = tg.ones(2, 3, 2)
    assert x.prod((0, -1)).shape == (3,) and x.norm(2, (0, 2), True).shape == (1, 3, 1)
    with pytest.raises(ValueError, match="twice"):
        x.nansum((0, -3))
    with pytest.raises(IndexError, match="cumprod: dim must be from -3 to 2"):
        x.cumprod(3)


def test_nan() -> None:
    nan = float("nan")
    x = tg.tensor([2.0, nan, 1.0])
    assert x.sort().indices.tolist() == [2, 0, 1] and x.topk(1).indices.tolist() == [1]
    assert np.isnan(x.median().item()) and x.median(0).indices.item() == 1 and x.nansum().item() == 3.0
    assert x.nanmean().item() == 1.5 and np.isnan(tg.cummax(x, 0).values[2].item())
    assert tg.fmax(x, 0.0).tolist() == [2.0, 0.0, 1.0] and tg.xlogy(tg.tensor(0.0), nan).isnan().item()
    assert slope(lambda x: tg.nan_to_num(x), [1.0, nan, float("inf")]) == [[1.0, 0.0, 0.0]]
    assert slope(lambda x: x.nansum(), [1.0, nan]) == [[1.0, 0.0]]


def test_views_and_copies() -> None:
    """A diagonal is a view: writing into it writes into the matrix."""
    x = tg.zeros(3, 3)
    x.diagonal().fill_(2.0)
    assert x.trace().item() == 6.0
    y = tg.zeros(2, 3, requires_grad=True)
    z = y * 1.0
    z.diagonal()  # reading leaves the graph as it was
    z.sum().backward()
    assert y.grad.tolist() == [[1.0] * 3] * 2


ERRORS: dict[str, tuple[Any, type[Exception], str]] = {
    "mm": (lambda x: tg.mm(x, tg.ones(3)), ValueError, r"mm: the second must have 2 axes, got shape \(3,\)"),
    "bmm": (lambda x: tg.bmm(tg.ones(2, 1, 1), tg.ones(3, 1, 1)), ValueError, "bmm: the batches must be equally long"),
    "dot": (lambda x: tg.dot(x, x), ValueError, r"dot: the first argument must have 1 axis, got shape \(2, 3\)"),
    "einsum letters": (lambda x: tg.einsum("ijk->i", x), ValueError, "names 3 axes, got shape"),
    "einsum lengths": (lambda x: tg.einsum("ij,kj->ik", x, tg.ones(2, 4)), ValueError, "'j' in .* has the lengths 3 and 4"),
    "einsum operands": (lambda x: tg.einsum("ij,jk", x), ValueError, "names 2 operands, got 1"),
    "einsum result": (lambda x: tg.einsum("ij->ik", x), ValueError, "must name axes of the operands"),
    "tensordot": (lambda x: tg.tensordot(x, x, 1), ValueError, "differ in length"),
    "topk": (lambda x: tg.topk(x, 4), IndexError, "topk: k must be from 0 to 3"),
    "kthvalue": (lambda x: tg.kthvalue(x, 0), IndexError, "kthvalue: k must be from 1 to 3"),
    "index_select": (lambda x: x.index_select(1, tg.tensor([3])), IndexError, "index_select: an index must be from 0 to 2, got 3"),
    "index_add": (lambda x: x.index_add(1, tg.tensor([0]), x), ValueError, r"the source must have shape \(2, 1\), got \(2, 3\)"),
    "index_dtype": (lambda x: x.index_select(1, tg.tensor([0.0])), TypeError, "indices must be integers"),
    "scatter": (lambda x: x.scatter(1, tg.tensor([[-1]]), 1.0), IndexError, "an index must be from 0 to 2, got -1"),
    "scatter shape": (lambda x: x.scatter(1, tg.zeros(3, 1).long(), 1.0), ValueError, "fit into it except along dim 1"),
    "scatter dtype": (lambda x: x.scatter(1, tg.zeros(1, 1).long(), x.double()), TypeError, "src must have x's dtype float32"),
    "scatter_reduce": (lambda x: x.scatter_reduce(1, tg.zeros(1, 1).long(), x, "max"), ValueError, "got 'max'"),
    "masked_select": (lambda x: x.masked_select(x), TypeError, "the mask must be bool"),
    "masked_scatter": (lambda x: x.masked_scatter(x > 0, x[0]), ValueError, "has 6 true places"),
    "repeat": (lambda x: x.repeat(2), ValueError, "at least 2 sizes"),
    "unfold": (lambda x: x.unfold(1, 4, 1), ValueError, "windows of 4"),
    "pad": (lambda x: F.pad(x, (1, 2, 3)), ValueError, "expected a pair"),
    "pad reflect": (lambda x: F.pad(x, (3, 0), "reflect"), ValueError, "needs a longer axis than 3"),
    "unflatten": (lambda x: x.unflatten(1, (2, 2)), ValueError, "do not multiply to 3"),
    "movedim": (lambda x: x.movedim((0, 1), 0), ValueError, "as many sources as destinations"),
    "diag": (lambda x: tg.diag(tg.ones(1, 1, 1)), ValueError, "one or two axes"),
    "trace": (lambda x: tg.trace(x[0]), ValueError, "expected a matrix"),
    "div": (lambda x: x.div(x, rounding_mode="up"), ValueError, "rounding_mode must be"),
    "norm": (lambda x: x.norm("nuc"), ValueError, "got 'nuc'"),
    "clamp": (lambda x: x.clamp(), ValueError, "give min, max or both"),
    "glu": (lambda x: F.glu(x), ValueError, "must have an even length"),
    "prelu": (lambda x: F.prelu(x, tg.ones(2)), ValueError, "1 or 3 elements"),
    "group_norm": (lambda x: F.group_norm(x, 2), ValueError, "2 groups must divide the channels"),
    "batch_norm": (lambda x: F.batch_norm(x[:1], None, None, training=True), ValueError, "more than one value per channel"),
    "nll_loss": (lambda x: F.nll_loss(x, tg.tensor([0, 3])), IndexError, "a target must be from 0 to 2"),
    "bce": (lambda x: F.binary_cross_entropy(x * 2, x), ValueError, "expected probabilities from 0 to 1"),
    "bce shape": (lambda x: F.binary_cross_entropy(x, x[0]), ValueError, "must have one shape"),
    "huber": (lambda x: F.huber_loss(x, x, delta=0.0), ValueError, "delta must be above 0"),
    "one_hot": (lambda x: F.one_hot(tg.tensor([3]), 3), IndexError, "from 0 to 2, got 3"),
    "arguments": (lambda x: tg.exp2(x, x), TypeError, "exp2"),
    "searchsorted": (lambda x: tg.searchsorted(x, tg.ones(3, 3)), ValueError, "the rows of both must agree"),
    "take_along_dim": (lambda x: x.take_along_dim(tg.zeros(3, 1).long(), 1), ValueError, "must broadcast except along dim 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    """BC-13 and the like: wrong shapes, dtypes and indices are refused in words, before anything is computed."""
    function, kind, words = ERRORS[name]
    with pytest.raises(kind, match=words):
        function(tg.ones(2, 3))


def test_batch_norm_moves_its_running_values() -> None:
    x = tg.tensor(np.random.default_rng(0).standard_normal((8, 3, 2)))
    mean, var = tg.zeros(3).double(), tg.ones(3).double()
    F.batch_norm(x, mean, var, training=True, momentum=0.3)
    np.testing.assert_allclose(mean.numpy(), 0.3 * x.numpy().mean((0, 2)))
    np.testing.assert_allclose(var.numpy(), 0.7 + 0.3 * x.numpy().var((0, 2), ddof=1))


def test_nll_loss_of_nothing() -> None:
    """BC-19: with every target ignored the loss is 0, and so is its gradient; ignored rows may hold anything."""
    x = tg.tensor([[1.0, 2.0], [float("nan"), float("inf")]], requires_grad=True)
    loss = F.nll_loss(x, tg.tensor([-100, -100]))
    loss.backward()
    assert loss.item() == 0.0 and x.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_multi_dot_multiplies_in_the_cheapest_order() -> None:
    a, b, c = tg.ones(2, 100, requires_grad=True), tg.ones(100, 2), tg.ones(2, 50)
    with tg.graph.record() as records:
        tg.linalg.multi_dot([a, b, c])
    shapes = [r.output.shape for r in records if r.op.name == "matmul"]
    assert shapes == [(2, 2), (2, 50)]


def test_names_and_options_of_pytorch_programs() -> None:
    """numpy's and PyTorch's keyword names, `dtype`, `inplace`, and the older positions of `unbiased`."""
    x = tg.tensor([[1.0, 2.0], [3.0, 5.0]])
    assert x.sum(axis=1, keepdims=True).shape == (2, 1) and tg.sum(input=x, dim=0).tolist() == [4.0, 7.0]
    assert tg.maximum(x, other=tg.tensor(3.0)).tolist() == [[3, 3], [3, 5]] and x.cumprod(axis=0).shape == (2, 2)
    assert x.sum(dtype=tg.float64).dtype == np.float64 and x.bool().mean(dtype=tg.float32).item() == 1.0
    assert F.softmax(x, dim=-1, dtype=tg.float64).dtype == np.float64
    assert x.var(0, False).tolist() == [1.0, 2.25] and x.var(False).item() == x.var(unbiased=False).item()
    assert F.mse_loss(input=x, target=x).item() == 0.0 and tg.mm(x, mat2=x).shape == (2, 2)
    assert F.cross_entropy(input=x, target=tg.tensor([0, 1])).shape == () and tg.pow(x, exponent=2)[1, 1].item() == 25.0
    assert tg.where(x > 2, input=x, other=tg.tensor(0.0)).sum().item() == 8.0
    assert len(tg.split(x, split_size_or_sections=1)) == 2
    y = (x - 2.0).requires_grad_() * 1.0
    assert F.relu(y, inplace=True) is y and y.tolist() == [[0.0, 0.0], [1.0, 3.0]]
    y.sum().backward()
    with pytest.raises(TypeError, match="inplacee"):
        F.relu(x, inplacee=True)
