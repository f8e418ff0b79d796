"""GPT: every switch trains and generates; the cache; sampling; modes."""

import gc
import itertools

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import models, nn, optim

BASE = dict(vocab_size=13, block_size=8, n_layer=2, n_head=4, n_embd=16)
SWITCHES = [
    {},
    *[{"activation": a} for a in [*nn.ACTIVATIONS, *nn.GATED]],
    *[
        {"norm": n, "placement": p, "position": o, "n_kv_head": k}
        for (n, p), (o, k) in zip(
            itertools.cycle(itertools.product(("layer", "rms"), ("pre", "post"))),
            itertools.product(("learned", "sinusoidal", "rotary", "alibi", None), (None, 2, 1)),
            strict=False,
        )
    ],
    {"bias": False},
    {"tie_weights": False},
    {"d_ff": 24},
    {"dropout": 0.2},
]


def make(**switches: object) -> models.GPT:
    tg.manual_seed(0)
    return models.GPT(models.GPTConfig(**{**BASE, **switches}))


def noisy(**switches: object) -> models.GPT:
    """A GPT with weights large enough that its choices differ."""
    gpt = make(**switches)
    for p in gpt.parameters():
        if len(p.shape) == 2:
            nn.init.normal_(p, std=0.4)
    return gpt


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_bc01_every_switch_trains_a_step_and_generates(switches: dict[str, object]) -> None:
    """BC-01: and everything stays float32."""
    gpt = make(**switches)
    ids = np.random.default_rng(0).integers(0, 13, (2, 9))
    optimizer = optim.AdamW(gpt.param_groups(0.1), lr=1e-2)
    losses = []
    for _ in range(3):
        gpt.zero_grad()
        loss = gpt.loss(ids[:, :-1], ids[:, 1:])
        loss.backward()
        losses.append(loss.item())
        assert all(p.grad is not None and p.grad.dtype == p.dtype == np.float32 for p in gpt.parameters())
        optimizer.step()
    assert loss.dtype == np.float32 and gpt(ids[:, :3]).dtype == np.float32
    assert losses[-1] < losses[0] and abs(losses[0] - np.log(13)) < 0.7
    out = gpt.generate(ids[:, :2], 9, seed=1).numpy()
    assert out.shape == (2, 11) and (out[:, :2] == ids[:, :2]).all() and out.max() < 13


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", "alibi", None])
@pytest.mark.parametrize("length", [1, 2, 6, 7, 8, 11])
def test_bc09_bc10_cache_gives_what_the_model_gives(position: str | None, length: int) -> None:
    """BC-09, BC-10: greedy, past the end of the context too, for prompts as long as the context and longer."""
    gpt = noisy(position=position, n_kv_head=2, tie_weights=False)  # a tied head repeats its input
    prompt = np.random.default_rng(length).integers(0, 13, (2, length))
    with_cache = gpt.generate(prompt, 20, temperature=0).numpy()
    assert (with_cache == gpt.generate(prompt, 20, temperature=0, use_cache=False).numpy()).all()
    assert len(np.unique(with_cache)) > 2


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi"])
@pytest.mark.parametrize("batch", [1, 3])
def test_bc08_chunks_through_the_cache(position: str, batch: int) -> None:
    """BC-08, BC-09: prefill of 12 = 5 + 4 + 1 + 1 + 1."""
    gpt = noisy(position=position, block_size=12)
    ids = np.random.default_rng(0).integers(0, 13, (batch, 12))
    cache, parts, start = gpt.new_cache(), [], 0
    for n in (5, 4, 1, 1, 1):
        parts.append(gpt(ids[:, start : start + n], cache=cache).numpy())
        start += n
        assert [layer.length for layer in cache.layers] == [start] * 2
    assert np.abs(np.concatenate(parts, 1) - gpt(ids).detach().numpy()).max() < 1e-4
    assert not gpt(ids[:, :1], cache=gpt.new_cache()).requires_grad
    with pytest.raises(ValueError, match="13 tokens are more than block_size 12"):
        gpt(ids[:, :1], cache=cache)


def test_bc52_nan_in_the_unused_cache() -> None:
    """BC-52."""
    gpt = noisy()
    expected = gpt.generate([1, 2], 6, temperature=0).numpy().tolist()
    cache, out = gpt.new_cache(), [1, 2]
    logits = gpt.next_logits([out], cache).numpy()
    for _ in range(6):
        for layer in cache.layers:
            assert layer._keys is not None and layer._values is not None
            layer._keys[:, :, layer.length :] = np.nan
            layer._values[:, :, layer.length :] = np.nan
        out.append(int(logits.argmax()))
        if len(out) < 8:
            logits = gpt.next_logits([out[-1:]], cache).numpy()
    assert out == expected


@pytest.mark.parametrize(
    ("p", "top_p", "kept"),
    [
        ([0.5, 0.41, 0.09], 0.9, [0, 1]),
        ([0.7, 0.2, 0.1], 0.5, [0]),
        ([0.7, 0.2, 0.1], 0.0, [0]),
        ([0.4, 0.3, 0.2, 0.1], 0.8, [0, 1, 2]),
        ([0.5, 0.3, 0.15, 0.05], 0.6, [0, 1]),
        ([0.25] * 4, 1.0, [0, 1, 2, 3]),
        ([0.09, 0.5, 0.41], 0.9, [1, 2]),
    ],
)
def test_bc11_top_p(p: list[float], top_p: float, kept: list[int]) -> None:
    """BC-11."""
    got = models.next_probabilities(np.log(p), top_p=top_p)
    assert np.flatnonzero(got).tolist() == kept and abs(got.sum() - 1) < 1e-12
    assert np.allclose(got[kept], np.array(p)[kept] / np.array(p)[kept].sum())


def test_bc11_large_vocabulary_and_draws_near_one() -> None:
    """BC-11: a draw close to 1 gives a token."""

    class Top(np.random.Generator):
        def random(self, size=None):  # type: ignore[no-untyped-def,override]
            return np.full(size, np.nextafter(1.0, 0.0))

    logits = np.random.default_rng(0).standard_normal((2, 50257)).astype(np.float32)
    logits[0, -1] = -np.inf
    ids = models.sample_next(logits, rng=Top(np.random.PCG64(0)))
    assert ids.shape == (2,) and ids[0] < 50256 and ids[1] < 50257


@pytest.mark.parametrize("temperature", [0, 1e-8, 1e-45, np.float32(1e-45)])
@pytest.mark.parametrize("cut", [{}, {"top_k": 2}, {"top_p": 0.9}, {"top_k": 1, "top_p": 0.0}])
def test_bc12_temperature_zero(temperature: float, cut: dict[str, float]) -> None:
    """BC-12."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        assert models.sample_next(np.array([1, 3, 2], np.float32), temperature, rng=rng, **cut) == 1
        assert models.sample_next([2.0, 2.0, 1.0], temperature, rng=rng, **cut) == 0
        assert models.sample_next([-np.inf, 1.0, -np.inf], temperature, rng=rng, **cut) == 1


def test_bc12_bad_arguments_and_ties_in_top_k() -> None:
    """BC-12: errors; ties in top-k go to the lowest index."""
    for kw in ({"temperature": -1.0}, {"temperature": np.nan}, {"top_k": 0}, {"top_p": 1.5}, {"top_p": np.nan}):
        with pytest.raises(ValueError):
            models.sample_next([1.0, 2.0], **kw)
    assert models.next_probabilities([1.0, 2.0, 2.0, 2.0], top_k=2).tolist() == [0, 0.5, 0.5, 0]
    with pytest.raises(ValueError, match="NaN"):
        models.sample_next([np.nan, 1.0])
    with pytest.raises(ValueError, match="-inf"):
        models.sample_next([-np.inf, -np.inf])
    assert models.next_probabilities([np.inf, 1.0]).tolist() == [1, 0]


def test_draws_follow_the_distribution() -> None:
    p = np.array([0.1, 0.0, 0.6, 0.3])
    with np.errstate(divide="ignore"):
        ids = models.sample_next(np.broadcast_to(np.log(p), (4000, 4)), rng=np.random.default_rng(0))
    assert np.abs(np.bincount(ids, minlength=4) / 4000 - p).max() < 0.03


def test_bc13_ids_out_of_range() -> None:
    """BC-13."""
    gpt = make()
    for bad, value in (([[0, 13]], "13"), ([[0, -1]], "-1")):
        for call in (gpt, lambda ids: gpt.loss(ids, [[1, 2]]), lambda ids: gpt.generate(ids, 1)):
            with pytest.raises(IndexError, match=f"{value} .*below 13"):
                call(bad)
    with pytest.raises(IndexError):
        gpt.loss([[0, 1]], [[1, -99]])
    with pytest.raises(ValueError, match="9 tokens are more than block_size 8"):
        gpt(np.zeros((1, 9), np.int64))
    with pytest.raises(TypeError, match="integers"):
        gpt(np.zeros((1, 2)))


def test_bc55_unequal_lengths_are_refused() -> None:
    """BC-55."""
    with pytest.raises(ValueError, match="equally long"):
        make().generate([[1, 2, 3], [1]], 2)


def test_bc57_generation_leaves_modes_alone() -> None:
    """BC-57: dropout off inside; the mode of every module restored, after errors and abandoned streams too."""
    gpt, plain = noisy(dropout=0.5), noisy()
    plain.load_state_dict(gpt.state_dict())
    gpt.blocks[0].eval()
    modes = [m.training for m in gpt.modules()]
    first = gpt.generate([1, 2], 8, seed=3).numpy()
    assert (first == gpt.generate([1, 2], 8, seed=3).numpy()).all()
    assert (first == plain.generate([1, 2], 8, seed=3).numpy()).all()
    stream = gpt.generate_stream([1, 2], 8, seed=3)
    got = [int(next(stream)[0]), int(next(stream)[0])]
    assert got == first[2:4].tolist()
    assert [m.training for m in gpt.modules()] == modes and tg.is_grad_enabled()
    with tg.no_grad():
        next(stream)
        assert not tg.is_grad_enabled()
    del stream
    gc.collect()
    handle = gpt.lm_head.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gpt.generate([1, 2], 2)
    handle.remove()
    assert [m.training for m in gpt.modules()] == modes and tg.is_grad_enabled()


def test_eos_fills_up_and_stops() -> None:
    gpt = noisy()
    free = gpt.generate([[1, 2], [5, 6]], 12, seed=0).numpy()
    eos = int(free[0, 4])
    out = gpt.generate([[1, 2], [5, 6]], 12, seed=0, eos=eos).numpy()
    for row in out:
        places = np.flatnonzero(row[2:] == eos)
        assert not len(places) or (row[2 + places[0] :] == eos).all()
    one = gpt.generate([1, 2], 12, temperature=0, eos=int(gpt.generate([1, 2], 1, temperature=0).numpy()[-1]))
    assert one.shape == (3,)


def test_seed_none_follows_manual_seed() -> None:
    gpt = noisy()
    tg.manual_seed(5)
    a = gpt.generate([1], 7).numpy()
    tg.manual_seed(5)
    assert (a == gpt.generate([1], 7).numpy()).all()
    state = tg.get_rng_state()
    gpt.generate([1], 7, seed=1)
    assert tg.get_rng_state() == state


def test_bc28_parameters_counted_once_and_heads_do_not_matter() -> None:
    """BC-28."""
    assert len({make(n_head=h).num_parameters() for h in (1, 2, 4, 8)}) == 1
    gpt = make()
    assert make(tie_weights=False).num_parameters() - gpt.num_parameters() == 13 * 16
    decay, other = gpt.param_groups(0.1)
    ids = [id(p) for p in [*decay["params"], *other["params"]]]
    assert len(ids) == len(set(ids)) == len(list(gpt.parameters()))
    assert all(len(p.shape) == 2 for p in decay["params"]) and other["weight_decay"] == 0
    assert gpt.token_embedding.weight is gpt.lm_head.weight
    assert f"{gpt.num_parameters():,} parameters" in gpt.summary()


def test_loss_ignores_and_equals_the_mean() -> None:
    gpt = make()
    ids = np.array([[1, 2, 3]])
    logits = gpt(ids).detach().numpy()[0].astype(np.float64)
    nll = np.log(np.exp(logits).sum(-1)) - logits[np.arange(3), [2, 3, 4]]
    assert abs(gpt.loss(ids, np.array([[2, 3, 4]])).item() - nll.mean()) < 1e-5
    assert abs(gpt.loss(ids, [[2, -100, 4]]).item() - nll[[0, 2]].mean()) < 1e-5
    assert gpt.loss(ids, [[-100] * 3]).item() == 0


def test_initial_weights() -> None:
    gpt = make(n_embd=64, n_layer=4)
    assert abs(gpt.blocks[0].feed_forward.f.W1.weight.detach().numpy().std() - 0.02) < 1e-3
    assert abs(gpt.blocks[0].feed_forward.f.W2.weight.detach().numpy().std() - 0.02 / np.sqrt(8)) < 1e-3
    assert (gpt.blocks[0].attention.f.in_proj.bias.detach().numpy() == 0).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_embd": 15},
        {"n_kv_head": 3},
        {"activation": "x"},
        {"norm": "batch"},
        {"placement": "mid"},
        {"position": "none"},
        {"dropout": 1.5},
        {"n_layer": 0},
        {"position": "rotary", "n_embd": 12},
    ],
    ids=str,
)
def test_config_refuses(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"GPTConfig: .*{list(wrong)[0] if len(wrong) == 1 else 'even'}"):
        models.GPTConfig(**{**BASE, **wrong})


def test_config_round_trip() -> None:
    config = models.GPTConfig(**BASE, position=None)
    assert models.GPTConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ValueError, match="unknown fields"):
        models.GPTConfig.from_dict({**config.to_dict(), "extra": 1})
    with pytest.raises(TypeError):
        models.GPTConfig(**{**BASE, "n_layer": 2.0})
