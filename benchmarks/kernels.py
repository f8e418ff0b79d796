"""Each kernel, here and in PyTorch (and numpy's product): times, GFLOP/s or GB/s, and their geometric mean.

    python benchmarks/kernels.py [products] [others] [--turns 5] [--out FILE.json]

Products: the forward, dX and dW shapes of the four training configurations in the layouts in which they occur (N: as it
lies, T: transposed view), and odd sizes; against OpenBLAS (numpy) and MKL (PyTorch).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sides import THREADS, Side, limit_threads, median, options, report, serve, take_turns
from training import CONFIGS

Product = tuple[int, int, int, str]


def products() -> list[Product]:
    """(M, N, K, layouts) of the products of a training step, each once, and odd sizes."""
    found: dict[Product, None] = {}
    for batch, c, _ in CONFIGS.values():
        tokens, width, vocab = batch * c["block_size"], c["n_embd"], c["vocab_size"]
        for out, into in ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width), (vocab, width)):
            if tokens * out * into > 2e10:  # the head of gpt2 alone would take longer than all others
                continue
            found[tokens, out, into, "NT"] = None
            found[tokens, into, out, "NN"] = None
            found[out, into, tokens, "TN"] = None
    for odd in (
        (1024, 1024, 1024, "NN"),
        (333, 257, 129, "NN"),
        (1, 768, 768, "NT"),
        (8, 3072, 768, "NT"),
        (65, 65, 65, "TT"),
    ):
        found[odd] = None
    return list(found)


def operands(product: Product) -> tuple[np.ndarray, np.ndarray]:
    m, n, k, layout = product
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, k) if layout[0] == "N" else (k, m)).astype(np.float32)
    b = rng.standard_normal((k, n) if layout[1] == "N" else (n, k)).astype(np.float32)
    return (a if layout[0] == "N" else a.T), (b if layout[1] == "N" else b.T)


# name -> bytes that it must read and write at least
ROWS, WIDTH, VOCAB = 768, 512, 4096
OTHERS = {
    "softmax": 2 * ROWS * WIDTH * 4,
    "softmax backward": 3 * ROWS * WIDTH * 4,
    "layer_norm": 2 * ROWS * WIDTH * 4,
    "layer_norm backward": 3 * ROWS * WIDTH * 4,
    "gelu": 2 * ROWS * WIDTH * 4,
    "gelu backward": 3 * ROWS * WIDTH * 4,
    "silu": 2 * ROWS * WIDTH * 4,
    "cross_entropy": ROWS * VOCAB * 4,
    "cross_entropy backward": 2 * ROWS * VOCAB * 4,
    "attention": 4 * 12 * 4 * 64 * 32 * 4,
    "attention backward": 8 * 12 * 4 * 64 * 32 * 4,
    "attention T=512": 4 * 2 * 4 * 512 * 64 * 4,
    "attention T=512 backward": 8 * 2 * 4 * 512 * 64 * 4,
    "embedding backward": 2 * ROWS * WIDTH * 4,
    "adamw": 7 * 4_000_000 * 4,
}


def ours_others() -> dict[str, Callable[[], Any]]:
    from tinygrad_tf.kernels import activation, attention, embedding, loss, normalization, optimizer

    rng = np.random.default_rng(0)
    x, g = (rng.standard_normal((ROWS, WIDTH)).astype(np.float32) for _ in range(2))
    weight, bias = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    logits, targets = rng.standard_normal((ROWS, VOCAB)).astype(np.float32), rng.integers(0, VOCAB, ROWS)
    scale = np.full(ROWS, 1 / ROWS, np.float32)
    y = normalization.softmax(x)
    _, mean, rstd = normalization.layer_norm(x, weight, bias, 1e-5)
    _, lse = loss.cross_entropy(logits, targets)
    work: dict[str, Callable[[], Any]] = {
        "softmax": lambda: normalization.softmax(x),
        "softmax backward": lambda: normalization.softmax_backward(g, y),
        "layer_norm": lambda: normalization.layer_norm(x, weight, bias, 1e-5),
        "layer_norm backward": lambda: normalization.layer_norm_backward(g, x, weight, mean, rstd),
        "gelu": lambda: activation.gelu(x),
        "gelu backward": lambda: activation.gelu_backward(g, x),
        "silu": lambda: activation.silu(x),
        "cross_entropy": lambda: loss.cross_entropy(logits, targets),
        "cross_entropy backward": lambda: loss.cross_entropy_backward(scale, logits, targets, lse),
        "embedding backward": lambda: embedding.scatter_add_rows(x, targets % 65, 65),
    }
    for name, shape in (("attention", (12, 4, 64, 32)), ("attention T=512", (2, 4, 512, 64))):
        q, k, v, go = (rng.standard_normal(shape).astype(np.float32) for _ in range(4))
        out, rows = attention.attention(q, k, v, scale=0.125, causal=True)
        work[name] = lambda q=q, k=k, v=v: attention.attention(q, k, v, scale=0.125, causal=True)
        work[f"{name} backward"] = lambda q=q, k=k, v=v, go=go, out=out, rows=rows: attention.attention_backward(
            go, q, k, v, out, rows, scale=0.125, causal=True
        )
    p, gp, m, s = (np.full(4_000_000, 1e-3, np.float32) for _ in range(4))
    work["adamw"] = lambda: optimizer.adamw([p], [gp], [m], [s], 1e-3, 0.9, 0.99, 1e-8, 0.1, 3)
    return work


def torch_others() -> dict[str, Callable[[], Any]]:
    import torch
    from torch.nn import functional as F

    x, g = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    weight, bias = torch.ones(WIDTH, requires_grad=True), torch.zeros(WIDTH, requires_grad=True)
    logits, targets = torch.randn(ROWS, VOCAB), torch.randint(0, VOCAB, (ROWS,))
    table = torch.randn(65, WIDTH, requires_grad=True)
    work: dict[str, Callable[[], Any]] = {}

    def pair(name: str, function: Callable[..., Any], inputs: list[Any], gradient: Any) -> None:
        leaves = [t.clone().requires_grad_() for t in inputs]
        out = function(*leaves)
        work[name] = lambda: function(*inputs)
        work[f"{name} backward"] = lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)

    pair("softmax", lambda t: F.softmax(t, -1), [x], g)
    pair("layer_norm", lambda t, w, b: F.layer_norm(t, (WIDTH,), w, b), [x, weight.detach(), bias.detach()], g)
    pair("gelu", F.gelu, [x], g)
    pair("silu", F.silu, [x], g)
    pair("cross_entropy", lambda t: F.cross_entropy(t, targets), [logits], torch.tensor(1.0))
    for name, shape in (("attention", (12, 4, 64, 32)), ("attention T=512", (2, 4, 512, 64))):
        pair(name, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
             [torch.randn(shape) for _ in range(3)], torch.randn(shape))  # fmt: skip
    looked_up = F.embedding(targets % 65, table)
    work["embedding backward"] = lambda: torch.autograd.grad(looked_up, table, x, retain_graph=True)
    p = torch.full((4_000_000,), 1e-3, requires_grad=True)
    p.grad = torch.full_like(p, 1e-3)
    optimizer = torch.optim.AdamW([p], lr=1e-3, fused=True)
    work["adamw"] = optimizer.step
    return work


def multiplier(which: str) -> Callable[[Product], Callable[[], Any]]:
    """For a product, the function that computes it on this side."""

    def prepare(product: Product) -> Callable[[], Any]:
        a, b = operands(product)
        out = np.empty((product[0], product[1]), np.float32)
        if which == "ours":
            from tinygrad_tf.kernels import gemm

            return lambda: gemm.matmul(a, b, out)
        if which == "numpy":
            return lambda: np.matmul(a, b, out=out)
        import torch

        ta, tb, to = (torch.from_numpy(t.T).T if t.flags.f_contiguous else torch.from_numpy(t) for t in (a, b, out))
        return lambda: torch.matmul(ta, tb, out=to)

    return prepare


def side(which: str) -> None:
    """Be a side: time one product or one kernel."""
    if which == "ours":
        import tinygrad_tf  # noqa: F401
    elif which == "torch":
        import torch  # noqa: F401
    limit_threads()
    others: dict[str, Callable[[], Any]] = {}
    prepare = multiplier(which)
    prepared: dict[str, Callable[[], Any]] = {}

    def answer(what: Any, seconds: float) -> dict[str, Any]:
        key = str(what)
        if key not in prepared:
            if isinstance(what, list):
                prepared[key] = prepare(tuple(what))
            else:
                others.update(others or (ours_others() if which == "ours" else torch_others()))
                prepared[key] = others[what]
            prepared[key]()
        work = prepared[key]
        work()  # wakes the threads
        times: list[float] = []
        while sum(times) < seconds or len(times) < 3:
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return {"seconds": times}

    serve(answer)


def main() -> None:
    o = options(
        __doc__,
        parts=dict(positional=True, nargs="*", default=["products", "others"], metavar="products|others"),
        turns=dict(type=int, default=5),
    )
    if o.side:
        side(o.side)
        return
    threads = str(THREADS)
    figures: dict[str, Any] = {}
    if "products" in o.parts:
        sides = [Side(__file__, which, OPENBLAS_NUM_THREADS=threads) for which in ("ours", "numpy", "torch")]
        rows, ratios = [], []
        for product in products():
            answers = take_turns(sides, o.turns, what=product, seconds=0.05)
            s = {which: median(a) for which, a in answers.items()}
            work = 2 * product[0] * product[1] * product[2] / 1e9
            best = min(s["numpy"], s["torch"])
            ratios.append(best / s["ours"])
            size = " x ".join(map(str, product[:3]))
            rows.append([f"{size} {product[3]}", *(work / s[which] for which in s), 100 * ratios[-1]])
        mean = 100 * math.exp(sum(map(math.log, ratios)) / len(ratios))
        rows.append(["geometric mean; worst", "", "", "", f"{mean:.1f}; {100 * min(ratios):.1f}"])
        report(["product M x N x K", "ours GFLOP/s", "OpenBLAS", "MKL", "% of the better"], rows, None)
        figures["products"] = rows
        for one in sides:
            one.close()
        print()
    rows = []
    if "others" in o.parts:
        sides = [Side(__file__, which) for which in ("ours", "torch")]
        for name, moved in OTHERS.items():
            answers = take_turns(sides, o.turns, what=name, seconds=0.05)
            s = {which: median(a) for which, a in answers.items()}
            rows.append([name, 1e6 * s["ours"], 1e6 * s["torch"], s["torch"] / s["ours"], moved / s["ours"] / 1e9])
        for one in sides:
            one.close()
    report(["kernel", "ours us", "PyTorch us", "times as fast", "GB/s"], rows, o.out, **figures)


if __name__ == "__main__":
    main()
