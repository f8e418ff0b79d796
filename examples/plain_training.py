"""Train a small GPT by hand, on numpy and numba alone: no extra is imported.

python examples/plain_training.py
"""

from __future__ import annotations

import sys

import tinygrad_tf as tg
from tinygrad_tf import data, models, optim

EXTRAS = ("rich", "safetensors", "matplotlib", "regex", "torch")


def main(steps: int = 30) -> None:
    """Train for some steps, and see that the loss falls."""
    tg.manual_seed(0)
    corpus = data.load_corpus("toy-world")
    tokenizer = data.CharTokenizer.train(corpus.train)
    batches = data.Batches(tokenizer.encode_array(corpus.train), block_size=32, batch_size=8, seed=0)
    model = models.GPT(models.GPTConfig(tokenizer.vocab_size, block_size=32, n_layer=2, n_head=2, n_embd=32))
    optimizer = optim.AdamW(model.param_groups(weight_decay=0.1), lr=3e-3)
    losses = []
    for _ in range(steps):
        ids, targets = batches.next()
        optimizer.zero_grad()
        loss = model.loss(tg.from_numpy(ids), tg.from_numpy(targets))
        loss.backward()
        optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {steps} steps")
    assert losses[-1] < losses[0] - 0.5, "the loss did not fall"
    assert not set(EXTRAS) & set(sys.modules), f"imported: {set(EXTRAS) & set(sys.modules)}"


if __name__ == "__main__":
    main()
