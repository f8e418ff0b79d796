"""The identity path, certified: the Jacobian of y = x + F(x) is I + J_F, of a block of two (I + J2)(I + J1)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import graph, modes, nn
from ..graph import Array
from ..tensor import Tensor
from .activations import After, first, watch

LARGEST = 1024  # elements of x: a Jacobian has their square


@dataclass
class ResidualIdentity:
    """What was measured at one Residual; every error is a largest absolute difference."""

    name: str
    placement: str
    differences: float  # |J - N (I + J_F)|, J by finite differences
    engine: float  # the same, J by backward
    branch: float  # the spectral norm of J_F: the largest factor by which the branch stretches a change
    norm: tuple[float, float, float] | None  # largest, median and smallest singular value of N; None for pre-norm
    identity: float  # |N - I|: how far the skip is from passing a change on as it is


@dataclass
class Certificate:
    """What `identity_path` found. `holds` says whether every error is below the tolerance; `str()` gives the table."""

    block: str
    shape: tuple[int, ...]
    tolerance: float
    residuals: list[ResidualIdentity]
    terms: dict[str, tuple[float, float]] = field(default_factory=dict)  # name -> Frobenius and spectral norm
    product: float | None = None  # |J - product of the Residuals' (I + J_F)|, J of the whole block by differences
    product_engine: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the Jacobians are what the theory says."""
        errors = [e for r in self.residuals for e in (r.differences, r.engine)]
        errors += [e for e in (self.product, self.product_engine) if e is not None]
        return max(errors) <= self.tolerance

    def __str__(self) -> str:
        n = int(np.prod(self.shape))
        lines = [f"The identity path of {self.block}, at x of shape {self.shape}: Jacobians of {n} x {n}", ""]
        width = max(len(r.name) for r in self.residuals)
        post = any(r.norm for r in self.residuals)
        formula = "N (I + J_F)" if post else "(I + J_F)"
        lines.append(
            f"  {'Residual':<{max(width, 8)}}  |J - {formula}| by differences   by the engine   largest stretch of F"
        )
        for r in self.residuals:
            pad = " " * (len(formula) + 6)
            lines.append(
                f"  {r.name:<{max(width, 8)}}  {r.differences:<{len(pad) + 16}.1e}{r.engine:>13.1e}   {r.branch:>20.3f}"
            )
        for r in self.residuals:
            if r.norm is not None:
                top, middle, bottom = r.norm
                lines += ["", f"  {r.name}: post-norm, so the identity is multiplied by the norm's Jacobian N."]
                lines.append(f"  N stretches by {top:.3f} at most, {middle:.3f} in the middle, {bottom:.1e} at least.")
        if self.terms:
            lines += ["", f"  The block is {' + '.join(self.terms)}"]
            lines.append(f"  {'term':<12} {'Frobenius norm':>15} {'largest stretch':>16}")
            for name, (frobenius, spectral) in self.terms.items():
                lines.append(f"  {name:<12} {frobenius:>15.4f} {spectral:>16.4f}")
        if self.product is not None:
            lines.append(
                f"  |J - their sum|: {self.product:.1e} by differences, {self.product_engine:.1e} by the engine"
            )
        verdict = "holds" if self.holds else "does NOT hold"
        lines += ["", f"  The identity {verdict} (tolerance {self.tolerance:g})."]
        return "\n".join(lines)


@dataclass
class _Visit:
    """One call of a Residual: where it was, and what it was given and gave."""

    name: str
    module: Any
    x: Array
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    y: Array


def identity_path(block: Any, x: Any, *, tolerance: float = 1e-6, eps: float = 1e-6, show: bool = True) -> Certificate:
    """Certify, for each Residual that `block(x)` goes through, that its Jacobian is I + J_F, and print the certificate.

    J comes from finite differences and again from backward; J_F from the branch alone, F(x) = f(norm(x)), never from
    block(x) - x. With post-norm the identity is multiplied by the norm's Jacobian, J = N (I + J_F), and the certificate
    says by how much. For a block that is two Residuals, one after the other, J = I + J1 + J2 + J2 J1: the four terms.

    Args:
        block: a module with `nn.Residual`s in it, or one itself, in float64 (`.double()`); run in evaluation mode.
        x: a float64 Tensor of at most 1024 elements.
        tolerance: what an element of a Jacobian may be off (default 1e-6).
        eps: the step of the differences (default 1e-6).
        show: print the certificate (default True).

    Raises:
        TypeError: x is not float64. ValueError: x is too large, or the block has no Residual.

    Source: He et al. 2016, "Identity mappings in deep residual networks", section 2.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> tg.manual_seed(0)
    >>> block = nn.TransformerBlock(4, 2, causal=True).double()
    >>> tg.inspect.identity_path(block, tg.randn(1, 2, 4, dtype=tg.float64), show=False).holds
    True
    """
    if not isinstance(x, Tensor) or x.dtype != np.float64:
        came = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"identity_path: x must be a float64 Tensor, for finite differences, got {came}; use .double()")
    if x._data.size > LARGEST:
        raise ValueError(
            f"identity_path: x must have at most {LARGEST} elements, got shape {x.shape}; give a smaller one"
        )
    with nn.eval_mode(block), modes.enable_grad():
        visits = _visits(block, x)
        if not visits:
            raise ValueError(f"identity_path: {type(block).__name__} went through no nn.Residual with this x")
        rows = [_certify(v, eps) for v in visits]
        certificate = Certificate(type(block).__name__, x.shape, tolerance, [r for r, _, _ in rows])
        if len(visits) > 1 and _is_chain(visits, x._data, block):
            whole = lambda t: block(t)  # noqa: E731
            measured, computed = jacobian_by_differences(whole, x._data, eps), jacobian(whole, x._data)
            product = np.eye(x._data.size)
            for _, norm, branch in rows:
                product = norm @ (np.eye(len(product)) + branch) @ product
            certificate.product = float(np.abs(measured - product).max())
            certificate.product_engine = float(np.abs(computed - product).max())
            if len(visits) == 2:
                certificate.terms = _four_terms(*rows[0][1:], *rows[1][1:])
    if show:
        print(certificate)
    return certificate


def _visits(block: Any, x: Tensor) -> list[_Visit]:
    """The Residuals that a forward goes through, in that order."""
    visits: list[_Visit] = []

    def noting(name: str) -> After:
        def note(m: Any, args: Any, kwargs: Any, y: Any) -> None:
            others = {k: v for k, v in kwargs.items() if k != "x"}
            given = args[0] if args else kwargs["x"]
            visits.append(_Visit(name, m, given._data.copy(), args[1:], others, first(y)._data.copy()))

        return note

    residuals = [(n or type(m).__name__, m) for n, m in block.named_modules() if isinstance(m, nn.Residual)]
    with modes.no_grad(), watch((m, None, noting(name)) for name, m in residuals):
        block(x)
    return visits


def _is_chain(visits: list[_Visit], x: Array, block: Any) -> bool:
    """Whether the block is these Residuals one after the other and nothing else."""
    with modes.no_grad():
        y = first(block(graph._wrap(x)))
    ends = [x, *(v.y for v in visits)]
    return np.array_equal(ends[-1], y._data) and all(
        np.array_equal(e, v.x) for e, v in zip(ends[:-1], visits, strict=True)
    )


def _certify(visit: _Visit, eps: float) -> tuple[ResidualIdentity, Array, Array]:
    """The measurements at one Residual, with the Jacobian of what follows the sum (I for pre-norm) and of the branch."""
    residual = visit.module
    post = residual.placement == "post" and residual.norm is not None

    def whole(t: Any) -> Any:
        return first(residual(t, *visit.args, **visit.kwargs))

    def branch(t: Any) -> Any:  # F alone
        inner = t if residual.norm is None or post else residual.norm(t)
        return first(residual.f(inner, *visit.args, **visit.kwargs))

    eye = np.eye(visit.x.size)
    j_branch, j_norm = jacobian(branch, visit.x), eye
    if post:
        with modes.no_grad():
            middle = visit.x + branch(graph._wrap(visit.x))._data
        j_norm = jacobian(residual.norm, middle)
    theory = j_norm @ (eye + j_branch)
    s = np.linalg.svd(j_norm, compute_uv=False) if post else None
    found = ResidualIdentity(
        visit.name,
        residual.placement if residual.norm is not None else "no norm",
        float(np.abs(jacobian_by_differences(whole, visit.x, eps) - theory).max()),
        float(np.abs(jacobian(whole, visit.x) - theory).max()),
        float(np.linalg.norm(j_branch, 2)),
        None if s is None else (float(s[0]), float(np.median(s)), float(s[-1])),
        float(np.abs(j_norm - eye).max()),
    )
    return found, j_norm, j_branch


def _four_terms(n1: Array, j1: Array, n2: Array, j2: Array) -> dict[str, tuple[float, float]]:
    """(I + J2)(I + J1) multiplied out; N2 and N1 stand for post-norm's Jacobians."""
    eye = np.eye(len(j1))
    plain = np.array_equal(n1, eye) and np.array_equal(n2, eye)
    names = ("I", "J1", "J2", "J2 J1") if plain else ("N2 N1", "N2 N1 J1", "N2 J2 N1", "N2 J2 N1 J1")
    parts = [n2 @ b @ n1 @ a for b, a in itertools.product((eye, j2), (eye, j1))]
    return {name: (float(np.linalg.norm(p)), float(np.linalg.norm(p, 2))) for name, p in zip(names, parts, strict=True)}


def jacobian(function: Callable[[Any], Any], x: Array) -> Array:
    """The Jacobian of `function` at x by backward: a row for each output, a column for each input."""
    leaf = graph._wrap(np.array(x), True)
    y = function(leaf)
    rows = np.zeros((y._data.size, x.size))
    if y._requires_grad:
        for i in range(len(rows)):
            u = np.zeros(len(rows))
            u[i] = 1.0
            (row,) = graph.grad(y, leaf, graph._wrap(u.reshape(y._data.shape)), retain_graph=True, allow_unused=True)
            if row is not None:
                rows[i] = row._data.reshape(-1)
    return rows


def jacobian_by_differences(function: Callable[[Any], Any], x: Array, eps: float = 1e-6) -> Array:
    """The same by (f(x + eps e_i) - f(x - eps e_i)) / 2 eps."""
    columns = []
    with modes.no_grad():
        for i in range(x.size):
            step = np.zeros(x.size)
            step[i] = eps
            up, down = (first(function(graph._wrap(x + s * step.reshape(x.shape))))._data for s in (1.0, -1.0))
            columns.append((up - down).reshape(-1) / (2 * eps))
    return np.stack(columns, 1)
