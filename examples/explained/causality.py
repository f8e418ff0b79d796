"""With a causal mask no position sees a later one, not even a little (因果掩码, causal mask)

Claim. The output at position t depends on the inputs up to t only: the gradient with respect to every later input is exactly zero,
and changing later tokens changes no bit of earlier outputs.

Expected. The largest gradient to a later input is 0, exactly, for attention with plain, grouped, rotary and ALiBi heads, for a block in
both norm orders, and for a GPT of two layers; the change of earlier logits when later tokens change is 0.

Control. A model without the mask, and three planted leaks, are caught, each with a gradient of at least 1e-6: a mask that is one
position too generous, a norm that takes its mean over the positions, and a feature that holds the sequence's mean. And the gradient to
positions up to t is at least 1e-6: the zero is not for want of a gradient.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import models, nn

from .frame import Check, Experiment, Result, Size, normal

D, T = 16, 10
Layer = Callable[[tg.Tensor], tg.Tensor]


def sees(layer: Layer, random: np.random.Generator) -> Any:
    """|gradient| of output t with respect to input s, the largest over the features: (T, T)."""
    rows = []
    x = normal(random, 1, T, D, grad=True)
    cotangent = normal(random, 1, D)
    for t in range(T):
        x.grad = None
        (layer(x)[:, t] * cotangent).sum().backward()
        rows.append(np.abs(x.grad.numpy()).max((0, 2)))
    return np.stack(rows)


def later(seen: Any) -> float:
    return float(np.triu(seen, 1).max())


def gpt_from_stream(gpt: models.GPT) -> Layer:
    """The model from the embedded tokens on: ids have no gradient."""

    def forward(x: tg.Tensor) -> tg.Tensor:
        for block in gpt.blocks:
            x = block(x)
        return gpt.norm(x)  # type: ignore[misc, no-any-return]

    return forward


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    gpt = models.GPT(models.GPTConfig(20, T, 2, 2, D)).double()
    mha = nn.MultiHeadAttention(D, 2, causal=True).double()
    honest: dict[str, Layer] = {
        "attention": mha,
        "grouped": nn.MultiHeadAttention(D, 4, n_kv_heads=2, causal=True).double(),
        "rotary": nn.MultiHeadAttention(D, 2, causal=True, position="rotary").double(),
        "ALiBi": nn.MultiHeadAttention(D, 2, causal=True, position="alibi").double(),
        "block, pre": nn.TransformerBlock(D, 2, causal=True).double(),
        "block, post": nn.TransformerBlock(D, 2, causal=True, placement="post").double(),
        "GPT": gpt_from_stream(gpt),
    }
    unmasked = nn.MultiHeadAttention(D, 2).double()
    one_too_many = np.tril(np.ones((T, T), dtype=bool), 1)
    leaks: dict[str, Layer] = {
        "no mask": unmasked,
        "mask one too generous": lambda x: unmasked(x, mask=tg.tensor(one_too_many)),
        "mean over the positions": lambda x: mha(x - x.mean(1, keepdim=True)),
        "a feature of the whole": lambda x: mha(x + 1e-3 * x.mean((1, 2), keepdim=True)),
    }
    seen = {name: sees(layer, random) for name, layer in {**honest, **leaks}.items()}
    ids = random.integers(0, 20, (1, T))
    changed = ids.copy()
    changed[:, T // 2 :] = (ids[:, T // 2 :] + 1 + random.integers(0, 19, (1, T - T // 2))) % 20
    with tg.no_grad():
        first, second = (gpt(i).numpy()[:, : T // 2] for i in (ids, changed))
    values = {
        "later": max(later(seen[name]) for name in honest),
        "bits": float(np.abs(first - second).max()),
        "caught": min(later(seen[name]) for name in leaks),
        "earlier": min(float(np.diag(seen[name], -1).min()) for name in honest),
    }
    return Result(values, {"seen": seen})


def draw(figure: Any, results: list[Result]) -> None:
    seen = results[0].data["seen"]
    names = ("attention", "block, pre", "GPT", "mask one too generous", "mean over the positions")
    for axes, name in zip(figure.subplots(1, len(names)), names, strict=True):
        matrix = seen[name]
        logs = np.log10(np.where(matrix > 0, matrix, np.nan))
        image = axes.imshow(logs, cmap="viridis", vmin=-4, vmax=0)
        axes.set(title=name, xlabel="input s", xticks=[], yticks=[])
        axes.title.set_color("tab:red" if "m" == name[0] else "black")
    figure.axes[0].set_ylabel("output t")
    figure.colorbar(image, ax=figure.axes, label="log₁₀ gradient (white: exactly 0)", shrink=0.7)


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    17,
    (
        Check("later", "largest gradient to a later input, of seven layers", at_most=0),
        Check("bits", "change of earlier logits when later tokens change", at_most=0),
        Check("caught", "largest gradient to a later input, smallest of four leaks", at_least=1e-6, control=True),
        Check("earlier", "smallest gradient to the input just before", at_least=1e-6, control=True),
    ),
    run,
    draw,
    size=(14, 3.4),
)
