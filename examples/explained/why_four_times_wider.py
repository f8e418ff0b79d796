"""The FFN is wider inside because width makes patterns separable; that it is four times is a convention (升维, 前馈网络)

Claim. The FFN lifts a position to d_ff features, where ReLU makes separable by a plane (线性可分) what was not: Cover's theorem. A wider
FFN reaches a lower loss; and four times the width of the stream, d_ff = 4 d_model, is the right factor.

Expected. Of random labellings of 64 points in 8 dimensions, at most 0.05 are separable as they are and at least 0.95 after
lifting to 8 · 8 = 64 ReLU features; without ReLU the lifted points stay at most at 0.05. The width at which half become separable is 0.7 to
1.3 times Cover's, points / 2 = 32. Trained to fit 1024 random facts, the loss falls with every doubling of d_ff / d_model from 0.5 to 8,
by at least 0.01 nats each. If one factor were right for all, the factor that halves the loss of a guess would be the same for 256
and for 1024 facts: their ratio at most 1.5.

Control. With as few points as dimensions plus one (9) every labelling is separable without lifting, at least 0.99: the test can say yes.
"""

from functools import partial
from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, fit

D, POINTS = 8, 64
WIDTHS = (8, 16, 24, 32, 40, 48, 64)
RATIOS, D_MODEL, ANSWERS, FACTS = (0.25, 0.5, 1, 2, 4, 8, 16), 16, 8, (256, 1024)


def separable(features: Any, labels: Any) -> bool:
    """Whether a plane separates the labels: whether the squared hinge loss can be 0. Newton's method on it is exact."""
    z = np.hstack([features, np.ones((len(features), 1))])
    z = np.linalg.svd(z, full_matrices=False)[0][:, : np.linalg.matrix_rank(z)] * len(z) ** 0.5 * labels[:, None]
    w = np.zeros(z.shape[1])
    for _ in range(100):
        margin = 1 - z @ w
        active = z[margin > 0]
        if not len(active):
            return True
        gradient = -2 * active.T @ margin[margin > 0]
        step = np.linalg.solve(2 * active.T @ active + 1e-9 * np.eye(len(w)), gradient)
        scale, loss = 1.0, (margin.clip(0) ** 2).sum()
        while (np.clip(1 - z @ (w - scale * step), 0, None) ** 2).sum() > loss * (1 + 1e-12) and scale > 1e-8:
            scale /= 2
        w = w - scale * step
        if (z @ w > 0).all():
            return True
        if np.abs(scale * step).max() < 1e-10:
            return False
    return bool((z @ w > 0).all())


def share(random: np.random.Generator, width: int, n: int, relu: bool = True, points: int = POINTS) -> float:
    """Of n random labellings, the share that is separable after lifting to some features (0: not lifted)."""
    found = 0
    for _ in range(n):
        x = random.standard_normal((points, D))
        if width:
            lift = nn.Linear(D, width).double()
            h = lift(tg.tensor(x))
            x = (F.relu(h) if relu else h).detach().numpy()
        found += separable(x, random.choice([-1.0, 1.0], points))
    return found / n


def losses(random: np.random.Generator, facts: int, steps: int) -> list[float]:
    """The loss of FFNs of each width on some random facts (a vector, one of 8 answers), after equal training."""
    x = tg.tensor(random.standard_normal((facts, D_MODEL)).astype("f"))
    answers = tg.tensor(random.integers(0, ANSWERS, facts))

    def loss(model: Any) -> Any:
        return F.cross_entropy(model(x), answers)

    found = []
    for ratio in RATIOS:
        model = nn.Sequential(nn.FeedForward(D_MODEL, int(ratio * D_MODEL), "relu"), nn.Linear(D_MODEL, ANSWERS))
        curve = fit(model.parameters(), partial(loss, model), steps, lr=1e-2)
        found.append(curve[-1])
    return found


def needed(loss: list[float]) -> float:
    """The d_ff / d_model at which the loss is half that of a guess, between the measured ones."""
    half = np.log(ANSWERS) / 2
    return float(2 ** np.interp(-half, -np.array(loss), np.log2(RATIOS)))


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    n = size.pick(30, 100, 500)
    curve = [share(random, w, n) for w in WIDTHS]
    above = next(i for i, s in enumerate(curve) if s >= 0.5)
    low, high = curve[above - 1], curve[above]
    half = WIDTHS[above - 1] + (0.5 - low) / (high - low) * (WIDTHS[above] - WIDTHS[above - 1])
    loss = {facts: losses(random, facts, size.pick(100, 250, 1500)) for facts in FACTS}
    factors = {facts: needed(curve) for facts, curve in loss.items()}
    values = {
        "plain": share(random, 0, n),
        "lifted": curve[-1],
        "linear": share(random, 64, n, relu=False),
        "half": half / (POINTS / 2),
        "gain": float(-np.diff(loss[1024][1:-1]).max()),
        "factors": factors[1024] / factors[256],
        "few": share(random, 0, n, points=D + 1),
        **{f"factor_{facts}": factor for facts, factor in factors.items()},
    }
    return Result(values, {"curve": curve, "loss": loss})


def draw(figure: Any, results: list[Result]) -> None:
    left, right = figure.subplots(1, 2)
    for i, r in enumerate(results):
        left.plot(WIDTHS, r.data["curve"], "o-", color="tab:blue", label=None if i else "lifted, ReLU")
        left.plot(64, r.values["linear"], "s", color="tab:red", ms=9, label=None if i else "lifted, no activation")
        for facts, colour in zip(FACTS, ("tab:green", "tab:purple"), strict=True):
            label = None if i else f"{facts} facts"
            right.semilogx(RATIOS, r.data["loss"][facts], "o-", color=colour, base=2, label=label)
    left.axvline(POINTS / 2, color="k", ls=":", lw=1)
    left.text(POINTS / 2, 0.03, " Cover: half the points", fontsize=10)
    left.set(title=f"separable labellings of {POINTS} points in {D} dimensions", xlabel="features", ylim=(-0.03, 1.03))
    right.axvline(4, color="k", ls=":", lw=1)
    right.set(title="loss after training (nats)", xlabel="d_ff / d_model", ylim=(0, None))
    right.axhline(np.log(ANSWERS) / 2, color="k", ls=":", lw=1)
    right.legend()
    right.set_xticks(RATIOS, [f"{x:g}" for x in RATIOS])
    left.legend()


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    7,
    (
        Check("plain", "share separable as they are", at_most=0.05),
        Check("lifted", "share separable, 64 ReLU features", at_least=0.95),
        Check("linear", "share separable, 64 linear features", at_most=0.05),
        Check("half", "width where half are separable / Cover's", 0.7, 1.3),
        Check("gain", "smallest gain of a doubling of d_ff (nats)", at_least=0.01),
        Check("factors", "d_ff / d_model needed, 1024 facts / 256 facts", at_most=1.5),
        Check("few", "share separable, 9 points, not lifted", at_least=0.99, control=True),
    ),
    run,
    draw,
    {f"factor_{facts}": f"d_ff / d_model needed for {facts} facts" for facts in FACTS},
    size=(12, 4.5),
)
