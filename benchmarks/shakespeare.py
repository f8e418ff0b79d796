"""The same GPT from the same weights on the same batches, here and in PyTorch: both loss curves and both times.

    python benchmarks/shakespeare.py TEXT [--steps 2000] [--out FILE.json]

The setting is nanoGPT's published one for a CPU: block 64, batch 12, 4 layers, 4 heads, width 128, no bias, no dropout, learning rate
1e-3 to 1e-4 with 100 steps of warm-up, beta2 0.99, weight decay 0.1, clip 1.0; character tokens, the first 90 % of
the text for training. Both sides run in processes of their own, and take turns of 50 steps, so that a noisy machine
disturbs both alike. PyTorch is at its best: 2 threads, fused attention, fused AdamW.
"""

from __future__ import annotations

import math
import pathlib
import tempfile
import time
from typing import Any

import numpy as np
from sides import Side, limit_threads, options, report, serve

CONFIG = dict(block_size=64, n_layer=4, n_head=4, n_embd=128, bias=False)
BATCH, TURN = 12, 50
LR, MIN_LR, WARMUP, BETAS, DECAY, CLIP = 1e-3, 1e-4, 100, (0.9, 0.99), 0.1, 1.0


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to MIN_LR."""
    if step < WARMUP:
        return LR * (step + 1) / (WARMUP + 1)
    progress = (step - WARMUP) / max(1, steps - WARMUP)
    return MIN_LR + 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))) * (LR - MIN_LR)


def read(path: str) -> tuple[np.ndarray, np.ndarray, int]:
    text = pathlib.Path(path).read_text(encoding="utf-8")
    characters = sorted(set(text))
    lookup = {c: i for i, c in enumerate(characters)}
    ids = np.array([lookup[c] for c in text], dtype=np.int64)
    n = int(0.9 * len(ids))
    return ids[:n], ids[n:], len(characters)


def batch(tokens: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    starts = generator.integers(0, len(tokens) - CONFIG["block_size"], BATCH)
    windows = tokens[starts[:, None] + np.arange(CONFIG["block_size"] + 1)]
    return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])


def our_side(vocab: int, weights: pathlib.Path, steps: int) -> tuple[Any, Any]:
    import tinygrad_tf as tg
    from tinygrad_tf import models, optim
    from tinygrad_tf.training import loss_and_gradients

    limit_threads()
    tg.manual_seed(1337)
    model = models.GPT(models.GPTConfig(vocab_size=vocab, **CONFIG))  # type: ignore[arg-type]
    np.savez(weights, **{k: v.numpy() for k, v in model.state_dict().items()})
    optimizer = optim.AdamW(model.param_groups(DECAY), lr=LR, betas=BETAS)

    compute = tg.capture(loss_and_gradients(model))

    def train(ids: np.ndarray, targets: np.ndarray, lr: float) -> float:
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss = compute(ids, targets, 1.0)
        optim.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.item()

    def evaluate(ids: np.ndarray, targets: np.ndarray) -> float:
        with tg.no_grad():
            return model.loss(ids, targets).item()

    return train, evaluate


def torch_side(vocab: int, weights: pathlib.Path, steps: int) -> tuple[Any, Any]:
    import torch
    from torch_gpt import TorchGPT

    limit_threads()
    model = TorchGPT(dict(vocab_size=vocab, **CONFIG))
    with np.load(weights) as saved:
        model.load_state_dict({k: torch.from_numpy(saved[k].copy()) for k in saved.files})
    optimizer = model.optimizer(LR, BETAS, DECAY)

    def train(ids: np.ndarray, targets: np.ndarray, lr: float) -> float:
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad(set_to_none=True)
        loss = model.loss(torch.from_numpy(ids), torch.from_numpy(targets))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.item()

    def evaluate(ids: np.ndarray, targets: np.ndarray) -> float:
        with torch.no_grad():
            return model.loss(torch.from_numpy(ids), torch.from_numpy(targets)).item()

    return train, evaluate


def side(which: str, text: str, steps: int, weights: pathlib.Path) -> None:
    """Be a side: train the next TURN steps, or validate."""
    training, validation, vocab = read(text)
    train, evaluate = (our_side if which == "ours" else torch_side)(vocab, weights, steps)
    generator = np.random.default_rng(1337)
    starts = np.arange(0, len(validation) - CONFIG["block_size"] - 1, CONFIG["block_size"])
    step = 0

    def answer(do: str) -> dict[str, Any]:
        nonlocal step
        if do == "validate":
            losses = []
            for i in range(0, len(starts), 64):
                rows = validation[starts[i : i + 64, None] + np.arange(CONFIG["block_size"] + 1)]
                losses += [evaluate(np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:]))] * len(rows)
            return {"val_loss": float(np.mean(losses))}
        losses, seconds = [], []
        for _ in range(min(TURN, steps - step)):
            ids, targets = batch(training, generator)
            start = time.perf_counter()
            losses.append(train(ids, targets, learning_rate(step, steps)))
            seconds.append(time.perf_counter() - start)
            step += 1
        return {"losses": losses, "seconds": seconds}

    serve(answer)


def main() -> None:
    o = options(
        __doc__,
        text=dict(positional=True, help="a file of text"),
        steps=dict(type=int, default=2000),
        weights=dict(type=pathlib.Path),
    )
    if o.side:
        side(o.side, o.text, o.steps, o.weights)
        return
    results: dict[str, Any] = {"ours": {"losses": [], "seconds": []}, "torch": {"losses": [], "seconds": []}}
    with tempfile.TemporaryDirectory() as folder:
        more = (o.text, "--steps", str(o.steps), "--weights", str(pathlib.Path(folder) / "weights.npz"))
        sides = []
        for which in results:  # ours first: it makes the weights
            sides.append(Side(__file__, which, *more))
            for key, values in sides[-1].ask(do="train").items():
                results[which][key] += values
        for turn in range(1, -(-o.steps // TURN)):
            for s in sides if turn % 2 else sides[::-1]:
                for key, values in s.ask(do="train").items():
                    results[s.name][key] += values
            if (turn + 1) % 5 == 0:
                means = ", ".join(f"{which} {np.mean(r['losses'][-TURN:]):.4f}" for which, r in results.items())
                print(f"step {len(results['ours']['losses']):5d}: {means}", flush=True)
        for s in sides:
            results[s.name].update(s.ask(do="validate"))
            s.close()
    apart = max(abs(a - b) for a, b in zip(results["ours"]["losses"], results["torch"]["losses"], strict=True))
    ours = np.median(results["ours"]["seconds"][5:])
    rows = []
    for which, r in results.items():
        seconds = float(np.median(r["seconds"][5:]))
        rows.append([which, f"{r['val_loss']:.4f}", 1000 * seconds, float(sum(r["seconds"])), seconds / ours, apart])
    report(
        ["side", "validation loss", "ms a step", "training s", "times ours", "curves apart"], rows, o.out, runs=results
    )


if __name__ == "__main__":
    main()
