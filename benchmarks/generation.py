"""Tokens a second when generating with a KV cache, here (`model.generate`, the ordinary layers) and in PyTorch.

    python benchmarks/generation.py [toy] [gpt2] [--turns 5] [--out FILE.json]

PyTorch has a preallocated cache, inference mode and fused attention. Random weights, greedy choice, batch 1 and 8. The
bandwidth is that of reading every weight once a token, against scaling an array in place, measured in the same run.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from sides import Side, limit_threads, median, options, report, serve, take_turns
from training import CONFIGS

NEW = {"toy": 56, "gpt2": 16}
PROMPT = 8


def ours(name: str) -> Any:
    import tinygrad_tf as tg
    from tinygrad_tf import models

    limit_threads()
    tg.manual_seed(0)
    model = models.GPT(models.GPTConfig(**CONFIGS[name][1])).eval()

    def generate(ids: np.ndarray, new: int) -> None:
        model.generate(ids, new, temperature=0.0)

    return generate


def torchs(name: str) -> Any:
    import torch
    from torch.nn import functional as F
    from torch_gpt import TorchGPT

    limit_threads()
    config = CONFIGS[name][1]
    model = TorchGPT(config).eval()
    heads, width = config["n_head"], config["n_embd"] // config["n_head"]

    def forward(ids: Any, caches: list[Any], at: int) -> Any:
        n = ids.shape[1]
        x = model.token_embedding(ids) + model.position.weight[at : at + n]
        for block, cache in zip(model.blocks, caches, strict=True):
            attention = block.attention.f
            qkv = attention.in_proj(block.attention.norm(x)).view(len(ids), n, 3, heads, width)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            cache[0][:, :, at : at + n] = k
            cache[1][:, :, at : at + n] = v
            y = F.scaled_dot_product_attention(
                q, cache[0][:, :, : at + n], cache[1][:, :, : at + n], is_causal=at == 0 and n > 1
            )
            x = x + attention.out_proj(y.transpose(1, 2).reshape(len(ids), n, -1))
            x = block.feed_forward(x)
        return model.lm_head(model.norm(x[:, -1]))

    def generate(ids: np.ndarray, new: int) -> None:
        with torch.inference_mode():
            shape = (2, len(ids), heads, ids.shape[1] + new, width)
            caches = [torch.empty(shape) for _ in model.blocks]
            fresh, at = torch.from_numpy(ids), 0
            for _ in range(new):
                logits = forward(fresh, caches, at)
                at += fresh.shape[1]
                fresh = logits.argmax(-1, keepdim=True)

    return generate


def main() -> None:
    o = options(
        __doc__,
        configs=dict(positional=True, nargs="*", default=["toy", "gpt2"], metavar="CONFIG"),
        turns=dict(type=int, default=5),
    )
    if o.side:
        generate = (ours if o.side == "ours" else torchs)(o.configs[0])

        def answer(do: str, batch: int = 1, new: int = 1) -> dict[str, Any]:
            if do == "peak":
                from tinygrad_tf.profiling import peaks

                return {"bytes": peaks(2)[1]}
            ids = np.random.default_rng(0).integers(0, 65, (batch, PROMPT))
            start = time.perf_counter()
            generate(ids, new)
            return {"seconds": [time.perf_counter() - start]}

        serve(answer)
        return
    rows = []
    for name in o.configs:
        c = CONFIGS[name][1]
        weights = 4 * (12 * c["n_layer"] * c["n_embd"] ** 2 + c["vocab_size"] * c["n_embd"])
        sides = [Side(__file__, which, name) for which in ("ours", "torch")]
        for batch in (1, 8):
            for s in sides:
                s.ask(do="generate", batch=batch, new=4)
            answers = take_turns(sides, o.turns, do="generate", batch=batch, new=NEW[name])
            peak = sides[0].ask(do="peak")["bytes"] / 2  # of read and written bytes, the read ones
            seconds = {which: median(a) for which, a in answers.items()}
            for which, s in seconds.items():
                rows.append([name, batch, which, batch * NEW[name] / s, s / seconds["ours"],
                             100 * weights * NEW[name] / s / peak])  # fmt: skip
        for s in sides:
            s.close()
    report(["config", "batch", "side", "tokens/s", "times ours", "% of read bandwidth"], rows, o.out)


if __name__ == "__main__":
    main()
