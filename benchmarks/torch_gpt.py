"""The peer: the same GPT in PyTorch, at its best (fused attention, fused AdamW), with the names of ours."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool):
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(width, 3 * width, bias=bias)
        self.out_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x: Any) -> Any:
        B, T, D = x.shape
        q, k, v = self.in_proj(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(y.transpose(1, 2).reshape(B, T, D))


class _FeedForward(nn.Module):
    def __init__(self, width: int, bias: bool):
        super().__init__()
        self.W1 = nn.Linear(width, 4 * width, bias=bias)
        self.W2 = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: Any) -> Any:
        return self.W2(F.gelu(self.W1(x)))


class _Residual(nn.Module):
    def __init__(self, f: nn.Module, width: int, bias: bool):
        super().__init__()
        self.f = f
        self.norm = nn.LayerNorm(width, bias=bias)

    def forward(self, x: Any) -> Any:
        return x + self.f(self.norm(x))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool):
        super().__init__()
        self.attention = _Residual(_Attention(width, heads, bias), width, bias)
        self.feed_forward = _Residual(_FeedForward(width, bias), width, bias)

    def forward(self, x: Any) -> Any:
        return self.feed_forward(self.attention(x))


class _Position(nn.Module):
    def __init__(self, block: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(block, width))


class TorchGPT(nn.Module):
    """Built from the fields of a GPTConfig: learned positions, pre-norm, layer norm, GELU, tied weights, no dropout."""

    def __init__(self, config: dict[str, Any]):
        super().__init__()
        vocab, width, bias = config["vocab_size"], config["n_embd"], config["bias"]
        self.token_embedding = nn.Embedding(vocab, width)
        self.position = _Position(config["block_size"], width)
        self.blocks = nn.ModuleList(_Block(width, config["n_head"], bias) for _ in range(config["n_layer"]))
        self.norm = nn.LayerNorm(width, bias=bias)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.token_embedding.weight
        for p in self.parameters():
            nn.init.normal_(p, std=0.02 / math.sqrt(2 * config["n_layer"]))

    def forward(self, ids: Any) -> Any:
        x = self.token_embedding(ids) + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))

    def loss(self, ids: Any, targets: Any) -> Any:
        return F.cross_entropy(self(ids).view(-1, self.lm_head.out_features), targets.reshape(-1))

    def optimizer(self, lr: float, betas: tuple[float, float], weight_decay: float) -> Any:
        groups = [
            {"params": [p for p in self.parameters() if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in self.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=betas, fused=True)
