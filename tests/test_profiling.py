"""`tg.profile`: what it counts, and that it changes nothing."""

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import models, nn, optim


def small() -> tuple[models.GPT, np.ndarray]:
    tg.manual_seed(3)
    model = models.GPT(models.GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16))
    return model, np.arange(24).reshape(3, 8) % 11


def test_counts_operations_modules_and_the_optimizer() -> None:
    model, ids = small()
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    with tg.profile() as p:
        loss = model.loss(ids, ids)
        loss.backward()
        optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    linear = p.operations["linear"]
    assert linear.calls == 4 * 2 + 1
    weights = sum(w.numel() for name, w in model.named_parameters() if name.endswith((".weight", "token_embedding.weight"))
                  and w.ndim == 2 and not name.startswith("position"))  # fmt: skip
    assert linear.flops == 3 * 2 * ids.size * weights  # the tied embedding is the head
    assert linear.forward > 0 and linear.backward > 0 and linear.kept > 0
    assert p.operations["AdamW.step"].calls == 1 and p.operations["clip_grad_norm_"].calls == 1
    assert {"GPT.blocks.0.attention.f", "GPT.blocks.1.feed_forward.f.W1"} <= set(p.modules)
    by_operation = sum(r.calls for r in p.operations.values()) - 2
    assert by_operation == sum(r.calls for r in p.modules.values())
    assert 0 < sum(r.seconds for r in p.operations.values()) <= p.seconds


def test_values_are_those_without_a_profile() -> None:
    model, ids = small()
    model.loss(ids, ids).backward()
    plain = [p.grad.numpy().copy() for p in model.parameters()]
    model.zero_grad()
    with tg.profile():
        model.loss(ids, ids).backward()
    for a, p in zip(plain, model.parameters(), strict=True):
        assert np.array_equal(a, p.grad.numpy())


def test_what_is_kept_is_counted_once() -> None:
    x = tg.ones(100, 100, requires_grad=True)
    with tg.profile() as p:
        y = x * 2.0  # keeps the factor
        z = tg.exp(y)  # keeps its result
        w = z * z  # keeps z again
    assert p.operations["exp"].kept == 100 * 100 * 4 and p.operations["mul"].kept == 4
    assert w.requires_grad


def test_the_table_reads() -> None:
    layer = nn.Linear(64, 64)
    with tg.profile() as p:
        layer(tg.ones(32, 64)).sum().backward()
    text = str(p)
    assert "linear" in text and "GFLOP/s" in text and "kept for backward" in text and "Linear" in p.table("module")
    with pytest.raises(ValueError, match="by must be"):
        p.table("colour")


def test_profiles_do_not_nest_and_end_after_an_error() -> None:
    with tg.profile():
        with pytest.raises(RuntimeError, match="do not nest"):
            with tg.profile():
                pass
    with pytest.raises(KeyError):
        with tg.profile():
            raise KeyError
    with tg.profile() as p:
        tg.ones(2) + 1
    assert p.operations["add"].calls == 1
