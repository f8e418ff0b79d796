"""The whole training step (forward, backward, clip, AdamW), here and in PyTorch: time, memory, share of the GEMM peak.

    python benchmarks/training.py [tiny] [toy] [baby] [gpt2] [--compile] [--turns 5] [--out FILE.json]

Same weights, same batches. Here, forward and backward are captured (`tg.capture`); `--as-it-is` adds the same step without
that. The arithmetic of a step is counted as 6 N tokens for the N parameters of the matrices, plus
attention's causal half, 6 B T² D a layer; the peak is a 1024³ product by this project's kernel in the same run.
"""

from __future__ import annotations

import pathlib
import tempfile
import time
from typing import Any

import numpy as np
from sides import Side, limit_threads, median, options, peak_memory, report, serve, take_turns

CONFIGS: dict[str, tuple[int, dict[str, Any], int]] = {  # batch, model, steps in a turn
    "tiny": (16, dict(vocab_size=65, block_size=32, n_layer=2, n_head=2, n_embd=64, bias=True), 100),
    "toy": (12, dict(vocab_size=65, block_size=64, n_layer=4, n_head=4, n_embd=128, bias=True), 25),
    "baby": (64, dict(vocab_size=65, block_size=256, n_layer=6, n_head=6, n_embd=384, bias=True), 1),
    "gpt2": (4, dict(vocab_size=50257, block_size=256, n_layer=12, n_head=12, n_embd=768, bias=True), 1),
}
LR, BETAS, DECAY, CLIP = 3e-4, (0.9, 0.95), 0.1, 1.0


def arithmetic(name: str) -> float:
    """Floating-point operations of a training step."""
    batch, c, _ = CONFIGS[name]
    width, tokens = c["n_embd"], batch * c["block_size"]
    matrices = c["n_layer"] * 12 * width * width + c["vocab_size"] * width
    return 6.0 * matrices * tokens + 6.0 * c["n_layer"] * batch * c["block_size"] ** 2 * width


def ours(name: str, weights: pathlib.Path | None, captured: bool = True) -> Any:
    import tinygrad_tf as tg
    from tinygrad_tf import models, optim

    limit_threads()
    tg.manual_seed(0)
    model = models.GPT(models.GPTConfig(**CONFIGS[name][1]))
    if weights is not None:
        np.savez(weights, **{k: v.numpy() for k, v in model.state_dict().items()})
    optimizer = optim.AdamW(model.param_groups(DECAY), lr=LR, betas=BETAS)

    def forward_and_backward(ids: Any, targets: Any) -> Any:
        loss = model.loss(ids, targets)
        loss.backward()
        return loss

    loss_and_gradients = tg.capture(forward_and_backward) if captured else forward_and_backward

    def step(ids: np.ndarray, targets: np.ndarray) -> float:
        optimizer.zero_grad()
        loss = loss_and_gradients(ids, targets)
        optim.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return float(loss.item())

    return step


def torchs(name: str, weights: pathlib.Path, compiled: bool) -> Any:
    import torch
    from torch_gpt import TorchGPT

    limit_threads()
    model = TorchGPT(CONFIGS[name][1])
    with np.load(weights) as saved:
        model.load_state_dict({k: torch.from_numpy(saved[k].copy()) for k in saved.files})
    optimizer = model.optimizer(LR, BETAS, DECAY)
    loss_of = torch.compile(model.loss) if compiled else model.loss

    def step(ids: np.ndarray, targets: np.ndarray) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(torch.from_numpy(ids), torch.from_numpy(targets))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return float(loss.item())

    return step


def side(which: str, name: str, weights: pathlib.Path) -> None:
    """Be a side: train `steps` steps, or tell the peaks."""
    if which in ("ours", "as it is"):
        step = ours(name, weights, which == "ours")
    else:
        step = torchs(name, weights, which == "torch.compile")
    batch, c, _ = CONFIGS[name]
    rng = np.random.default_rng(0)

    def answer(do: str, steps: int = 0) -> dict[str, Any]:
        if do == "memory":
            return {"bytes": peak_memory()}
        if do == "peak":
            from tinygrad_tf.profiling import peaks

            return {"flops": peaks(2)[0]}
        losses, seconds = [], []
        for _ in range(steps):
            ids = rng.integers(0, c["vocab_size"], (batch, c["block_size"] + 1))
            x, y = np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])
            start = time.perf_counter()
            losses.append(step(x, y))
            seconds.append(time.perf_counter() - start)
        return {"losses": losses, "seconds": seconds}

    serve(answer)


def main() -> None:
    o = options(
        __doc__,
        configs=dict(positional=True, nargs="*", default=list(CONFIGS), metavar="CONFIG"),
        as_it_is=dict(action="store_true", help="our step without a capture too"),
        compile=dict(action="store_true", help="against torch.compile too"),
        turns=dict(type=int, default=5),
        weights=dict(type=pathlib.Path),
    )
    if o.side:
        side(o.side, o.configs[0], o.weights)
        return
    names = ["ours", *["as it is"] * o.as_it_is, "torch", *["torch.compile"] * o.compile]
    rows = []
    for name in o.configs:
        with tempfile.TemporaryDirectory() as folder:
            weights = str(pathlib.Path(folder) / "weights.npz")
            sides = []
            for which in names:
                sides.append(Side(__file__, which, name, "--weights", weights))
                sides[-1].ask(do="train", steps=4)  # compiled, captured, warmed up
            answers = take_turns(sides, o.turns, do="train", steps=CONFIGS[name][2])
            memory = {s.name: s.ask(do="memory")["bytes"] for s in sides}
            peak = sides[0].ask(do="peak")["flops"]
            for s in sides:
                s.close()
        seconds = {which: median(answers[which]) for which in names}
        curves = {which: [x for a in answers[which] for x in a["losses"]] for which in names}
        for which in names:
            apart = max(abs(a - b) for a, b in zip(curves["ours"], curves[which], strict=True))
            rows.append([name, which, 1000 * seconds[which], seconds[which] / seconds["ours"],
                         100 * arithmetic(name) / seconds[which] / peak, memory[which] / 2**20,
                         memory["ours"] / memory[which], apart])  # fmt: skip
    report(
        [
            "config",
            "side",
            "ms a step",
            "times ours",
            "% of GEMM peak",
            "peak MiB",
            "ours / its memory",
            "curves apart",
        ],
        rows,
        o.out,
    )


if __name__ == "__main__":
    main()
