"""The same GPT from the same weights on the same batches, here and in PyTorch: both loss curves and both times.

    python benchmarks/shakespeare.py TEXT [--steps 2000] [--out FILE.json]

The setting is nanoGPT's published one for a CPU: block 64, batch 12, 4 layers, 4 heads, width 128, no bias, no dropout, learning rate
1e-3 to 1e-4 with 100 steps of warm-up, beta2 0.99, weight decay 0.1, clip 1.0; character tokens, the first 90 % of
the text for training. Both sides run in processes of their own, and take turns of 50 steps, so that a noisy machine
disturbs both alike. PyTorch is at its best: 2 threads, fused attention, fused AdamW.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

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

    tg.set_num_threads(2)
    tg.manual_seed(1337)
    model = models.GPT(models.GPTConfig(vocab_size=vocab, **CONFIG))  # type: ignore[arg-type]
    np.savez(weights, **{k: v.numpy() for k, v in model.state_dict().items()})
    optimizer = optim.AdamW(model.param_groups(DECAY), lr=LR, betas=BETAS)

    def train(ids: np.ndarray, targets: np.ndarray, lr: float) -> float:
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss = model.loss(ids, targets)
        loss.backward()
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

    torch.set_num_threads(2)
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


def worker(side: str, text: str, steps: int, weights: pathlib.Path) -> None:
    """Train TURN steps whenever a line comes in; answer with the losses and the seconds each step took."""
    training, validation, vocab = read(text)
    train, evaluate = (our_side if side == "ours" else torch_side)(vocab, weights, steps)
    generator = np.random.default_rng(1337)
    windows = np.arange(0, len(validation) - CONFIG["block_size"] - 1, CONFIG["block_size"])
    print("ready", flush=True)
    step = 0
    for line in sys.stdin:
        if line.strip() == "validate":
            losses = []
            for i in range(0, len(windows), 64):
                rows = validation[windows[i : i + 64, None] + np.arange(CONFIG["block_size"] + 1)]
                losses += [evaluate(np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:]))] * len(rows)
            print(json.dumps({"val_loss": float(np.mean(losses))}), flush=True)
            continue
        losses, seconds = [], []
        for _ in range(min(TURN, steps - step)):
            ids, targets = batch(training, generator)
            start = time.perf_counter()
            losses.append(train(ids, targets, learning_rate(step, steps)))
            seconds.append(time.perf_counter() - start)
            step += 1
        print(json.dumps({"losses": losses, "seconds": seconds}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--weights", type=pathlib.Path, default=pathlib.Path("runs/shakespeare_weights.npz"))
    parser.add_argument("--side", choices=("ours", "torch"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        worker(options.side, options.text, options.steps, options.weights)
        return
    options.weights.parent.mkdir(parents=True, exist_ok=True)
    sides, results = {}, {}
    for side in ("ours", "torch"):
        command = [sys.executable, __file__, options.text, "--steps", str(options.steps), "--weights", str(options.weights),
                   "--side", side]  # fmt: skip
        sides[side] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if sides[side].stdout.readline().strip() != "ready":
            raise SystemExit(f"the side {side!r} did not start")
        results[side] = {"losses": [], "seconds": []}

    def ask(side: str, what: str) -> dict[str, Any]:
        sides[side].stdin.write(what + "\n")
        sides[side].stdin.flush()
        return json.loads(sides[side].stdout.readline())

    for turn in range(-(-options.steps // TURN)):
        for side in ("ours", "torch") if turn % 2 else ("torch", "ours"):
            for key, values in ask(side, "go").items():
                results[side][key] += values
        if (turn + 1) % 5 == 0:
            at = len(results["ours"]["losses"])
            print(
                f"step {at:5d}: " + ", ".join(f"{s} {np.mean(r['losses'][-TURN:]):.4f}" for s, r in results.items()),
                flush=True,
            )
    for side, result in results.items():
        result.update(ask(side, "validate"))
        sides[side].stdin.close()
        result["median_ms"] = 1000 * statistics.median(result["seconds"][5:])
        print(f"{side:>6}: validation loss {result['val_loss']:.4f}, median step {result['median_ms']:.2f} ms, "
              f"training time {sum(result['seconds']):.1f} s")  # fmt: skip
    gap = max(abs(a - b) for a, b in zip(results["ours"]["losses"], results["torch"]["losses"], strict=True))
    ratio = results["torch"]["median_ms"] / results["ours"]["median_ms"]
    print(
        f"PyTorch's median step takes {ratio:.2f} times ours; the curves are never further apart than {gap:.4f}; {platform.processor() or platform.machine()}"
    )
    if options.out:
        options.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
