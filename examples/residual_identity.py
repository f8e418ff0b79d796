"""What residual connections do to gradients: in theory, in finite differences, and in a trained model.

    python examples/residual_identity.py [--out runs/residual_identity] [--quick]

The theory: y = x + F(x) has the Jacobian I + J_F, so a gradient g comes back as g + J_Fᵀ g: whatever F does, g itself
arrives. Through L blocks without the skip it is a product of L Jacobians J_F instead, which vanishes or explodes.
What is expected stands in THRESHOLDS, written down before anything was measured; the last part compares.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import models, nn, optim

WIDTH, GROWTH, ROWS = 32, 8, 32
DEPTHS = (1, 2, 4, 8, 16, 32, 64, 96)

# The gradient at the input over the gradient at the last block's output, at the deepest network, of L blocks: the
# lowest and the highest value that the theory allows. With the default U(-1/√in, 1/√in) weights a branch has a gain of
# about a = 0.22 and its Jacobian of about b = 0.23.
THRESHOLDS: dict[str, Callable[[int], tuple[float, float]]] = {
    "plain": lambda L: (0.0, 0.5**L),  # b^L
    "residual": lambda L: (0.5, 1.1**L + 1),  # (1 + b²)^(L/2): it grows, and does not vanish
    "pre-norm": lambda L: (0.5, 10.0),  # the stream grows as √L, so later branches count for less
    "post-norm": lambda L: (0.02, 20.0),  # the norm takes away what the sum adds: ((1 + b²) / (1 + a²))^(L/2)
    "concatenated": lambda L: (0.02, 50.0),  # [I; J_F]: the identity stays as long as everything is kept
    "compressed": lambda L: (0.0, 0.7**L),  # W [I; J_F]: a product of L matrices again
}
# The size of the activations behind the last block, over that of the input.
SCALES: dict[str, Callable[[int], tuple[float, float]]] = {
    "plain": lambda L: (0.0, 1.0),
    "residual": lambda L: (0.5, 1.1**L + 1),
    "pre-norm": lambda L: (0.5, 1 + math.sqrt(L)),
    "post-norm": lambda L: (0.5, 2.0),
    "concatenated": lambda L: (0.05, 2.0),
    "compressed": lambda L: (0.0, 0.7**L + 0.5),
}
# What the skip alone brings back, if all branches are cut: exactly all of it, or what the norms leave.
SKIP_ALONE: dict[str, Callable[[int], tuple[float, float]]] = {
    "residual": lambda L: (1.0, 1.0),
    "pre-norm": lambda L: (1.0, 1.0),
    "post-norm": lambda L: (0.0, 0.999**L),
}
LEARNED = {"plain": (0.9, 1.1), "pre-norm": (0.0, 0.7)}  # the loss after training over that before, deepest network
ERROR = 1e-6  # of a Jacobian's element, against finite differences


# 1. The networks: one branch F, put together in six ways.


class Join(nn.Module):
    """The concatenation [x; F(x)] along the last axis, compressed again by a matrix if one is given."""

    def __init__(self, f: nn.Module, width: int, new: int, compress: bool) -> None:
        super().__init__()
        self.f = f
        self.compress = nn.Linear(width + new, width) if compress else None

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        joined = tg.cat([x, self.f(x)], -1)
        return joined if self.compress is None else self.compress(joined)


def block(kind: str, width: int) -> nn.Module:
    """One block of a kind, for a stream of a width."""
    if kind == "concatenated":
        branch = nn.Sequential(nn.Linear(width, 2 * GROWTH), nn.GELU(), nn.Linear(2 * GROWTH, GROWTH))
        return Join(branch, width, GROWTH, compress=False)
    branch = nn.FeedForward(width, 2 * width)
    if kind == "plain":
        return branch
    if kind == "compressed":
        return Join(branch, width, width, compress=True)
    norm = None if kind == "residual" else nn.LayerNorm(width)
    return nn.Residual(branch, norm, "post" if kind == "post-norm" else "pre")


class Network(nn.Module):
    """`depth` blocks of one kind, and a linear head."""

    def __init__(self, kind: str, depth: int) -> None:
        super().__init__()
        widths = [WIDTH + GROWTH * i if kind == "concatenated" else WIDTH for i in range(depth + 1)]
        self.blocks = nn.ModuleList(block(kind, w) for w in widths[:-1])
        self.head = nn.Linear(widths[-1], 1)

    def stream(self, x: tg.Tensor) -> tg.Tensor:
        """What the last block gives."""
        for b in self.blocks:
            x = b(x)
        return x

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        return self.head(self.stream(x))


# 2. What is measured.


@dataclass
class Reading:
    """One network: gradient and activations at its two ends, and its loss."""

    kind: str
    depth: int
    gradient: float  # |dL/dx_0| / |dL/dx_L|
    scale: float  # the size of x_L over that of x_0
    skip: float | None  # |g_0| / |g_L| with all branches cut
    loss: float


def size(a: Any) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(a))))


def task() -> tuple[tg.Tensor, tg.Tensor]:
    """Points and what is to be learned of them: a smooth function of a few directions."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, WIDTH))
    y = np.sin(x @ rng.standard_normal((WIDTH, 1)) / math.sqrt(WIDTH) * 2)
    return tg.tensor(x), tg.tensor(y / y.std())


def read(network: Network, kind: str, depth: int) -> Reading:
    """Measure one network as it is."""
    data, target = task()
    x = tg.tensor(data.numpy(), requires_grad=True)
    last = network.stream(x)
    loss = ((network.head(last) - target) ** 2).mean()
    at_input, at_end = (g.numpy() for g in tg.grad(loss, [x, last]))
    ratio = float(np.linalg.norm(at_input) / np.linalg.norm(at_end))
    return Reading(
        kind, depth, ratio, size(last.detach().numpy()) / size(data.numpy()), skip_alone(network, x), loss.item()
    )


def skip_alone(network: Network, x: tg.Tensor) -> float | None:
    """|g_0| / |g_L| when each branch gives its value but no gradient."""
    start = x
    for b in network.blocks:
        if not isinstance(b, nn.Residual):
            return None
        inner = x if b.norm is None or b.placement == "post" else b.norm(x)
        x = x + b.f(inner).detach()
        x = b.norm(x) if b.norm is not None and b.placement == "post" else x
    g = np.random.default_rng(1).standard_normal(x.shape)
    (found,) = tg.grad(x, start, tg.tensor(g))
    return float(np.linalg.norm(found.numpy()) / np.linalg.norm(g))


def train(network: Network, steps: int) -> None:
    """Fit the task."""
    data, target = task()
    optimizer = optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(steps):
        network.zero_grad()
        loss = ((network(data) - target) ** 2).mean()
        loss.backward()
        optim.clip_grad_norm_(list(network.parameters()), 1.0)
        optimizer.step()


def sweep(
    depths: Sequence[int], steps: int, kinds: Sequence[str] = tuple(THRESHOLDS), seed: int = 0
) -> tuple[list[Reading], list[Reading]]:
    """Every kind at every depth, before and after training."""
    before, after = [], []
    threads = tg.get_num_threads()
    tg.set_num_threads(1)  # these matrices are too small to share
    for kind in kinds:
        for depth in depths:
            tg.manual_seed(1000 * seed + depth)
            network = Network(kind, depth).double()
            before.append(read(network, kind, depth))
            train(network, steps)
            after.append(read(network, kind, depth))
    tg.set_num_threads(threads)
    return before, after


# 3. The four demonstrations that need no training.


def unchanged() -> bool:
    """A block whose branch gives 0 passes the gradient on bit for bit."""
    tg.manual_seed(0)
    transformer = nn.TransformerBlock(8, 2, causal=True)
    for last in (transformer.attention.f.out_proj, transformer.feed_forward.f.W2):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    x = tg.randn(2, 5, 8, requires_grad=True)
    g = tg.randn(2, 5, 8)
    (found,) = tg.grad(transformer(x), x, g)
    return bool(np.array_equal(found.numpy(), g.numpy()))


def certificates() -> list[tg.inspect.Certificate]:
    """I + J_F, by finite differences and by the engine, for pre-norm and post-norm."""
    found = []
    for placement in ("pre", "post"):
        tg.manual_seed(1)
        transformer = nn.TransformerBlock(4, 2, causal=True, placement=placement).double()
        found.append(tg.inspect.identity_path(transformer, tg.randn(1, 3, 4, dtype=tg.float64), tolerance=ERROR))
        print()
    return found


def nothing_survives() -> float:
    """The counter-example F(x) = -x: the identity is there, and J = I + J_F is 0."""
    x = tg.randn(3, 4, requires_grad=True)
    (found,) = tg.grad(nn.Residual(lambda t: -t)(x), x, tg.randn(3, 4))
    return float(np.abs(found.numpy()).max())


def trained_gpt(steps: int) -> tuple[tg.inspect.GradientPaths, tg.inspect.GradientPaths]:
    """The two paths of the gradient in a small GPT, before and after it has learned to count."""
    tg.manual_seed(2)
    gpt = models.GPT(models.GPTConfig(vocab_size=16, block_size=32, n_layer=4, n_head=4, n_embd=64))
    rng = np.random.default_rng(0)

    def batch() -> tuple[Any, Any]:
        rows = (rng.integers(0, 16, (16, 1)) + rng.integers(1, 4, (16, 1)) * np.arange(33)) % 16
        return rows[:, :-1], rows[:, 1:]

    ids, targets = batch()
    before = tg.inspect.gradient_paths(gpt, lambda: gpt.loss(ids, targets))
    optimizer = optim.AdamW(gpt.param_groups(0.1), lr=3e-3)
    for _ in range(steps):
        gpt.zero_grad()
        gpt.loss(*batch()).backward()
        optimizer.step()
    return before, tg.inspect.gradient_paths(gpt, lambda: gpt.loss(ids, targets))


# 4. The picture, and the comparison with what was expected.

COLORS = {
    "plain": "#8c8c8c",
    "residual": "#c8641e",
    "pre-norm": "#1f5fa8",
    "post-norm": "#2e8b57",
    "concatenated": "#7b4fa3",
    "compressed": "#b03a5b",
}


FORMULAS = {
    "plain": "F(x)",
    "residual": "x + F(x)",
    "pre-norm": "x + F(norm(x))",
    "post-norm": "norm(x + F(x))",
    "concatenated": "[x; F(x)]",
    "compressed": "W [x; F(x)]",
}


def picture(path: Path, before: list[Reading], after: list[Reading], paths: Any) -> None:
    """Gradient against depth, before and after training; activations; and the two paths in a GPT."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 9), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.12)  # type: ignore[union-attr]
    (a, b), (c, d) = figure.subplots(2, 2)
    floor = 1e-20
    for axes, readings, what, title in (
        (a, before, "gradient", "Does the gradient reach the input?  Before training"),
        (b, after, "gradient", "After training: what has no gradient has not learned"),
        (c, before, "scale", "What it costs: the size of the stream, before training"),
    ):
        for kind, color in COLORS.items():
            mine = [r for r in readings if r.kind == kind]
            values = [max(getattr(r, what), floor / 10) for r in mine]
            axes.plot([r.depth for r in mine], values, "o-", ms=4, color=color, label=f"{kind}:  {FORMULAS[kind]}")
            if what == "gradient" and kind == "post-norm":
                skips = [r.skip for r in mine if r.skip is not None]
                axes.plot([r.depth for r in mine], skips, ":", color=color, label="post-norm, through its skips alone")
        axes.set_title(title)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        depths = sorted({r.depth for r in readings})
        axes.set_xticks(depths, [str(x) for x in depths])
        axes.set_xlabel("blocks")
        axes.grid(True, alpha=0.25)
    for axes in (a, b):
        axes.set_ylim(floor, 1e3)
        axes.set_ylabel("|gradient at the input| / |gradient at the output|")
        axes.axhline(1.0, color="k", lw=0.8, alpha=0.5)
    c.set_ylim(3e-2, 3e1)
    c.set_ylabel("size of activations, output / input")
    a.legend(frameon=False, fontsize=9, loc="lower left")
    tg.inspect.draw_paths(d, list(paths))
    d.set_title("Inside a trained GPT: which way the gradient goes")
    figure.suptitle("y = x + F(x)  has the Jacobian  I + J_F :  a gradient g comes back as  g + J_Fᵀ g", fontsize=14)
    figure.savefig(path, dpi=130)


def verdicts(before: list[Reading], after: list[Reading]) -> list[tuple[str, float, float, float, bool]]:
    """(what, lowest, measured, highest, whether it holds) at the deepest network of each kind."""
    deepest = max(r.depth for r in before)
    rows = []
    first = {r.kind: r for r in before if r.depth == deepest}
    last = {r.kind: r for r in after if r.depth == deepest}
    for title, table, value in (
        ("gradient", THRESHOLDS, lambda k: first[k].gradient),
        ("activations", SCALES, lambda k: first[k].scale),
        ("skip alone", SKIP_ALONE, lambda k: first[k].skip),
    ):
        for kind, bounds in table.items():
            low, high = bounds(deepest)
            rows.append((f"{title}, {kind}", low, float(value(kind) or 0.0), high))
    for kind, (low, high) in LEARNED.items():
        rows.append((f"loss left after training, {kind}", low, last[kind].loss / first[kind].loss, high))
    slack = 1e-9
    return [(w, low, v, high, low * (1 - slack) <= v <= high * (1 + slack)) for w, low, v, high in rows]


def main(arguments: Sequence[str] | None = None) -> bool:
    """Run everything; True if all that was expected holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/residual_identity"), help="where the picture goes")
    parser.add_argument("--quick", action="store_true", help="small sizes, a few seconds")
    options = parser.parse_args(arguments)
    depths, steps, gpt_steps = ((1, 4, 16), 20, 5) if options.quick else (DEPTHS, 30, 150)

    print("1. A block whose branch is 0 passes the gradient on unchanged, bit for bit:", zero := unchanged())
    print("\n2. The Jacobian of a residual, certified\n")
    certified = certificates()
    print("3. The counter-example F(x) = -x: the largest element of the gradient is", gone := nothing_survives())
    print("   A residual does not guarantee that information survives: F can undo the identity.\n")
    print("4. A GPT, trained: the gradient's two ways at each Residual\n")
    untrained, trained = trained_gpt(gpt_steps)
    print(trained, "\n")
    print(f"5. Networks of {depths[0]} to {depths[-1]} blocks, before and after {steps} steps of training\n")
    before, after = sweep(depths, steps)
    print(f"   {'':<14}" + "".join(f"{d:>10}" for d in depths) + "   blocks")
    for title, readings, what in (
        ("the gradient at the input over that at the output", before, "gradient"),
        ("the same after training", after, "gradient"),
        ("the size of the activations", before, "scale"),
        ("the loss after training", after, "loss"),
    ):
        print(f"   {title}")
        for kind in THRESHOLDS:
            print(f"   {kind:<14}" + "".join(f"{getattr(r, what):>10.1e}" for r in readings if r.kind == kind))
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "residual_identity.png"
    picture(file, before, after, trained)

    rows = verdicts(before, after)
    rows.append(
        ("skip and branch add up, GPT", 0.0, max(s.error for s in [*untrained, *trained]), 1e-4, trained.adds_up)
    )
    rows.append(("|J - (I + J_F)|", 0.0, max(max(r.differences, r.engine) for c in certified for r in c.residuals), ERROR,
                 all(c.holds for c in certified)))  # fmt: skip
    rows.append(("F = 0: unchanged", 1.0, float(zero), 1.0, zero))
    rows.append(("F = -x: what is left", 0.0, gone, 0.0, gone == 0.0))
    print(f"\n6. What was expected, and what came, at {depths[-1]} blocks\n")
    for what, low, value, high, holds in rows:
        print(f"   {'ok ' if holds else 'NOT'}  {what:<38} {value:>9.2e}   expected {low:.1e} to {high:.1e}")
    print(f"\nThe picture: {file}")
    return all(row[-1] for row in rows)


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
