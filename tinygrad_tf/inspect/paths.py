"""The two paths of a gradient at each Residual: through the skip, and through the branch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .. import graph, modes, nn
from ..graph import Array, Node, TensorBase
from .activations import first, watch
from .picture import Picture


@dataclass
class PathSplit:
    """The gradient of the loss by a Residual's input x, y = x + F(x), split: g through the skip, J_Fᵀ g through F."""

    name: str
    skip: float  # the norm of g
    branch: float  # the norm of J_Fᵀ g
    cosine: float  # between the two; NaN where one is 0
    whole: float  # the norm of the whole gradient at x, by an ordinary backward
    error: float  # the norm of whole - (skip + branch + elsewhere), relative to their size
    elsewhere: float  # the norm of what reaches x by ways outside this Residual


class GradientPaths(Picture):
    """What `gradient_paths` found: `str()` gives a table, `data` the numbers, `plot` a picture.

    Attributes:
        splits: a PathSplit for each Residual, from the input to the loss.
        adds_up: whether at each of them the parts are the whole.
    """

    def __init__(self, splits: list[PathSplit], tolerance: float):
        self.splits, self.tolerance = splits, tolerance

    @property
    def adds_up(self) -> bool:
        return all(s.error <= self.tolerance for s in self.splits)

    @property
    def data(self) -> list[dict[str, Any]]:
        """A dictionary for each Residual."""
        return [asdict(s) for s in self.splits]

    def __len__(self) -> int:
        return len(self.splits)

    def __iter__(self) -> Iterator[PathSplit]:
        return iter(self.splits)

    def __str__(self) -> str:
        width = max(8, *(len(s.name) for s in self.splits))
        lines = [f"{'Residual':<{width}}  {'skip':>10}  {'branch':>10}  {'cosine':>7}  {'whole':>10}  {'error':>8}"]
        for s in reversed(self.splits):
            lines.append(
                f"{s.name:<{width}}  {s.skip:>10.3e}  {s.branch:>10.3e}  {s.cosine:>7.3f}  {s.whole:>10.3e}  {s.error:>8.1e}"
            )
        verdict = "add up to the whole" if self.adds_up else "do NOT add up to the whole"
        lines.append(
            f"The gradient goes from the top row down; skip and branch {verdict} (tolerance {self.tolerance:g})."
        )
        return "\n".join(lines)

    def draw(self, figure: Any) -> None:
        """The norms, layer by layer."""
        draw_paths(figure.add_subplot(), self.splits)


def draw_paths(axes: Any, splits: list[PathSplit]) -> None:
    """Skip and branch as lines over the Residuals, from the input on the left to the loss on the right."""
    places = np.arange(len(splits))
    axes.plot(places, [s.skip for s in splits], "o-", color="#1f5fa8", label="through the skip")
    axes.plot(places, [s.branch for s in splits], "s-", color="#c8641e", label="through the branch")
    axes.plot(places, [s.whole for s in splits], "--", color="0.5", label="the whole")
    axes.set_yscale("log")
    if len(splits) <= 16:
        axes.set_xticks(places, [s.name for s in splits], rotation=30, ha="right", fontsize=8)
    else:
        axes.set_xlabel("Residual, from the input to the loss")
    axes.set_ylabel("norm of the gradient")
    axes.grid(True, alpha=0.3)
    axes.legend(frameon=False)


def gradient_paths(model: Any, loss: Callable[[], Any] | Any, *, tolerance: float | None = None) -> GradientPaths:
    """Split the backward pass at every Residual of a model, y = x + F(x): dL/dx = g + J_Fᵀ g, with g = dL/dy.

    No `.grad` is changed, and the graph is kept.

    Args:
        model: a module with `nn.Residual`s in it.
        loss: a function without arguments that runs the model and returns a scalar loss; or that loss itself, if its
            backward has not been called yet (the Residuals are then found in the graph, in the model's order).
        tolerance: how far the parts may be from the whole, relative (default 1e-4 for float32, 1e-9 for float64).

    Raises:
        ValueError: no Residual was met, or the graph of a loss does not show as many as the model has.

    Source: He et al. 2016, "Identity mappings in deep residual networks", eq. 5.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> block, x = nn.TransformerBlock(8, 2), tg.randn(1, 3, 8)
    >>> paths = tg.inspect.gradient_paths(block, lambda: (block(x) ** 2).mean())
    >>> [split.name for split in paths], paths.adds_up
    (['attention', 'feed_forward'], True)
    """
    with modes.enable_grad():
        if callable(loss) and not isinstance(loss, TensorBase):
            value, sums = _run(model, loss)
        else:
            value, sums = loss, _found(model, loss)
    if not isinstance(value, TensorBase) or value._data.size != 1 or not value._requires_grad:
        raise ValueError("gradient_paths: the loss must be a scalar Tensor that was computed with gradients on")
    if not sums:
        raise ValueError(
            f"gradient_paths: {type(model).__name__} went through no nn.Residual whose input has a gradient"
        )
    if tolerance is None:
        tolerance = 1e-9 if value._data.dtype == np.float64 else 1e-4
    return GradientPaths([_split(value, name, node) for name, node in sums], tolerance)


def _run(model: Any, loss: Callable[[], Any]) -> tuple[Any, list[tuple[str, Node]]]:
    """Run the loss, and note each Residual's sum as it goes by."""
    sums: list[tuple[str, Node]] = []
    inputs: dict[int, Any] = {}

    def before(m: Any, args: Any, kwargs: Any) -> Any:
        x, rest = (args[0], args[1:]) if args else (kwargs.pop("x"), ())
        if not x._requires_grad or x._node is None:  # the first one: give x a place in the graph
            x = (graph._wrap(x._data, True) if not x._requires_grad else x) * 1.0
        inputs[id(m)] = x
        return (x, *rest), kwargs

    def after(m: Any, args: Any, kwargs: Any, y: Any) -> None:
        node = _sum_below(first(y)._node, inputs.pop(id(m))._edge())
        if node is not None:
            sums.append((names[id(m)], node))

    residuals = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Residual)]
    names = {id(m): n or type(m).__name__ for n, m in residuals}
    with watch((m, before, after) for _, m in residuals):
        return loss(), sums


def _sum_below(node: Any, edge: Any) -> Node | None:
    """The addition x + F(x) that a Residual's output comes from: the node itself, or below a norm."""
    stack, seen = [node], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen or node.number <= edge[0].number:
            continue
        seen.add(node)
        if node.op.name == "add" and _is(node.edges[0], edge):
            return node  # type: ignore[no-any-return]
        stack += [e[0] for e in node.edges if isinstance(e, tuple)]
    return None


def _is(a: Any, b: Any) -> bool:
    """Whether two edges are one; `==` would compare Tensors element by element."""
    return a is b or (isinstance(a, tuple) and isinstance(b, tuple) and a[0] is b[0] and a[1] == b[1])


def _found(model: Any, loss: Any) -> list[tuple[str, Node]]:
    """Every addition in the graph of a loss whose left side also leads into its right side, named in the model's order."""
    names = [n or type(m).__name__ for n, m in model.named_modules() if isinstance(m, nn.Residual)]
    nodes, stack = set(), [getattr(loss, "_node", None)]
    while stack:
        node = stack.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            stack += [e[0] for e in node.edges if isinstance(e, tuple)]
    sums = [n for n in nodes if n.op.name == "add" and n.metas[0] and n.metas[0][0] == n.outputs[0][0] and _branches(n)]
    if len(sums) != len(names):
        raise ValueError(
            f"gradient_paths: the model has {len(names)} Residuals, and the loss's graph shows {len(sums)} sums x + F(x); "
            "give a function that computes the loss, lambda: model.loss(...), so that they can be watched"
        )
    return list(zip(names, sorted(sums, key=lambda n: n.number), strict=True))


def _branches(node: Node) -> bool:
    """Whether the left side of an addition is on the way to its right side."""
    left, right = node.edges
    if left is None or not isinstance(right, tuple):
        return False
    oldest = left[0].number if isinstance(left, tuple) else -1
    stack, seen = [right[0]], set()
    while stack:
        n = stack.pop()
        if n in seen or n.number < oldest:
            continue
        seen.add(n)
        if any(_is(e, left) for e in n.edges):
            return True
        stack += [e[0] for e in n.edges if isinstance(e, tuple)]
    return False


def _at(edge: Any, meta: Any) -> Any:
    """A Tensor at an edge of the graph; its value does not matter."""
    return edge if isinstance(edge, TensorBase) else graph.at_edge(np.zeros(meta[0], meta[1]), edge)


def _pull(outputs: Any, at: Any, gradient: Any = None) -> Array:
    (found,) = graph.grad(outputs, at, gradient, retain_graph=True, allow_unused=True)
    return np.zeros(at._data.shape) if found is None else np.array(found._data, dtype=np.float64)


def _split(loss: Any, name: str, node: Node) -> PathSplit:
    x = _at(node.edges[0], node.metas[0])
    y = graph.at_edge(np.zeros(*node.outputs[0]), (node, 0))
    whole, g = _pull(loss, x), _pull(loss, y)
    seed = graph._wrap(g.astype(node.outputs[0][1]))
    branch = np.zeros_like(g)
    if node.edges[1] is not None:
        branch = _pull(_at(node.edges[1], node.metas[1]), x, seed)
    elsewhere = _past(loss, node, x)
    size = max(float(np.linalg.norm(p)) for p in (whole, g, branch, elsewhere))
    s, b = float(np.linalg.norm(g)), float(np.linalg.norm(branch))
    error = float(np.linalg.norm(whole - g - branch - elsewhere))
    return PathSplit(
        name,
        s,
        b,
        float((g * branch).sum() / (s * b)) if s and b else float("nan"),
        float(np.linalg.norm(whole)),
        error / size if size else 0.0,
        float(np.linalg.norm(elsewhere)),
    )


def _past(loss: Any, node: Node, x: Any) -> Array:
    """What reaches x around this Residual: the backward with both of the sum's edges cut."""
    edges = node.edges
    node.edges = (None, None)
    try:
        return _pull(loss, x)
    finally:
        node.edges = edges
