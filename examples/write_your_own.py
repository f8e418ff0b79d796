"""A layer, an operation and a kernel of your own, checked and trained: the page to copy from.

    python examples/write_your_own.py

The operation is softsign(x) = x / (1 + |x|), whose derivative is 1 / (1 + |x|)². Its forward and backward
are numba kernels; the layer is a gated feed-forward network that uses it; the model is a tiny language model with them.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import data, nn, training

# 1. Kernels: ndarrays in, ndarrays out. They know nothing of Tensors, and compile at their first call.


@numba.njit
def softsign_forward(x):
    y = np.empty_like(x)
    for i in range(x.size):
        y.flat[i] = x.flat[i] / (1 + abs(x.flat[i]))
    return y


@numba.njit
def softsign_backward(x, gradient):
    result = np.empty_like(x)
    for i in range(x.size):
        slope = 1 / (1 + abs(x.flat[i]))
        result.flat[i] = gradient.flat[i] * slope * slope
    return result


# 2. An operation: what it computes, and how a gradient goes through it.


class Softsign(tg.Function):
    """y = x / (1 + |x|), of any shape."""

    @staticmethod
    def forward(ctx: Any, x: tg.Tensor) -> tg.Tensor:
        """Compute y, and keep x for the way back."""
        ctx.save_for_backward(x)
        return tg.from_numpy(softsign_forward(x.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, gradient: tg.Tensor) -> tg.Tensor:
        """dL/dx from dL/dy."""
        (x,) = ctx.saved_tensors
        return tg.from_numpy(softsign_backward(x.detach().numpy(), gradient.detach().numpy()))


# 3. A layer: parameters and layers are attributes, the formula is `forward`.


class SoftsignGate(nn.Module):
    """y = W_out (softsign(W_gate x) * W_value x), x and y of shape (..., d_model)."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, d_ff)
        self.value = nn.Linear(d_model, d_ff)
        self.out = nn.Linear(d_ff, d_model)

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        """Apply the layer."""
        return self.out(Softsign.apply(self.gate(x)) * self.value(x))


# 4. A model: `loss(ids, targets)` is all that the Trainer asks for.


class TinyModel(nn.Module):
    """A causal language model of one attention layer and one layer of our own."""

    def __init__(self, vocab_size: int, block_size: int, d_model: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(block_size, d_model)
        self.attention = nn.Residual(nn.MultiHeadAttention(d_model, n_heads=4, causal=True), norm=nn.LayerNorm(d_model))
        self.gate = nn.Residual(SoftsignGate(d_model, 2 * d_model), norm=nn.LayerNorm(d_model))
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, ids: tg.Tensor) -> tg.Tensor:
        """Logits (B, T, vocab_size) of the tokens after ids (B, T)."""
        x = self.tokens(ids) + self.positions(tg.arange(ids.shape[1]))
        return self.head(self.gate(self.attention(x)))

    def loss(self, ids: tg.Tensor, targets: tg.Tensor) -> tg.Tensor:
        """The mean cross-entropy."""
        logits = self(ids)
        return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def main() -> None:
    """Check the operation and the layer, then train the model."""
    tg.manual_seed(0)

    # finite differences need float64; the module's own parameters are checked as well as its input
    tg.gradcheck(Softsign.apply, (tg.randn(3, 4, dtype=tg.float64, requires_grad=True),))
    print("gradcheck: the operation is right")
    tg.gradcheck(SoftsignGate(4, 6).double(), (tg.randn(2, 3, 4, dtype=tg.float64, requires_grad=True),))
    print("gradcheck: the layer is right, its input and all its parameters")

    text = "the quick brown fox jumps over the lazy dog. " * 50
    tokenizer = data.CharTokenizer.train(text)
    batches = data.Batches(tokenizer.encode_array(text), block_size=16, batch_size=16, seed=0)
    model = TinyModel(tokenizer.vocab_size, block_size=16)
    config = training.TrainConfig(steps=150, lr=1e-2, min_lr=1e-3, warmup=10)
    trainer = training.Trainer(model, batches, config, progress=False)
    trainer.train()
    print(f"trained: loss {math.log(tokenizer.vocab_size):.2f} at first, by chance; {trainer.loss:.3f} after training")


if __name__ == "__main__":
    main()
