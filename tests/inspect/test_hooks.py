"""What hooks record and take away: activations, attention maps, ablation; and that a model is afterwards as it was."""

import math

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import models, nn


def gpt(**options):
    tg.manual_seed(0)
    fields = {"vocab_size": 13, "block_size": 8, "n_layer": 2, "n_head": 4, "n_embd": 16} | options
    return models.GPT(models.GPTConfig(**fields)).double().eval()


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


IDS = np.random.default_rng(0).integers(0, 13, (3, 6))


# -- recorded activations ------------------------------------------------------------------------------------------------


def test_recorded_activations_are_what_the_modules_give_and_are_given():
    model = gpt()
    with tg.inspect.record(model) as outputs, tg.inspect.record(model, "blocks.1.*", inputs=True) as inputs:
        logits = model(IDS)
    assert np.array_equal(outputs["GPT"], logits.numpy()) and np.array_equal(outputs["lm_head"], logits.numpy())
    assert np.array_equal(inputs["blocks.1.attention"], outputs["blocks.0"])
    ffn = model.blocks[1].feed_forward.f
    assert np.allclose(
        inputs["blocks.1.feed_forward.f.W2"] @ ffn.W2.weight.numpy().T, outputs["blocks.1.feed_forward.f"]
    )
    assert list(outputs)[0] == "GPT" and len(inputs) < len(outputs) and hooks_of(model) == 0
    assert not any(a.base is not None or not a.flags.writeable for a in outputs.values()), "copies"


def test_of_several_runs_the_last_is_recorded():
    model = gpt()
    with tg.inspect.record(model, "blocks.*") as seen:
        model(IDS)
        model(IDS[:, :2])
    assert seen["blocks.0"].shape == (3, 2, 16)


def test_a_tuple_counts_as_its_first_element():
    mha = nn.MultiHeadAttention(8, 2)
    with tg.inspect.record(mha) as seen:
        y, _ = mha(tg.ones(1, 3, 8), need_weights=True)
    assert np.array_equal(seen["MultiHeadAttention"], y.detach().numpy())


def test_errors_of_record_say_what_there_is():
    model = gpt()
    with pytest.raises(ValueError, match="no module of GPT is called 'layers.*'; it has GPT, token_embedding"):
        with tg.inspect.record(model, "layers.*"):
            pass
    with tg.inspect.record(model, "blocks.*") as seen:
        with pytest.raises(KeyError, match="'blocks.0' has not run yet; recorded: nothing"):
            seen["blocks.0"]
        model(IDS)
    with pytest.raises(KeyError, match="'norm' was not asked for; recorded: blocks.0, "):
        seen["norm"]
    assert "blocks.0" in seen and "norm" not in seen and len(dict(seen)) == len(seen)


@pytest.mark.parametrize("kind", ["record", "attention_maps", "ablate"])
def test_after_an_exception_no_hook_is_left(kind):
    model = gpt()
    before = model(IDS).numpy()
    make = {
        "record": lambda: tg.inspect.record(model),
        "attention_maps": lambda: tg.inspect.attention_maps(model),
        "ablate": lambda: tg.inspect.ablate(model, {"blocks.*.attention": "all", "blocks.*.feed_forward": [1]}),
    }
    with pytest.raises(ZeroDivisionError), make[kind]():
        model(IDS)
        raise ZeroDivisionError
    with pytest.raises(IndexError), make[kind]():
        model([[99]])
    assert hooks_of(model) == 0 and np.array_equal(model(IDS).numpy(), before)


# -- attention maps ------------------------------------------------------------------------------------------------------


def by_hand(mha, x, mask=None, bias=0.0):
    """softmax(q kᵀ / √d_k) head by head, from W_Q and W_K."""
    b = mha.in_proj.bias.numpy()
    n_q = mha.n_heads * mha.d_k
    q = x @ mha.W_Q.numpy().T + b[:n_q]
    k = x @ mha.W_K.numpy().T + b[n_q : n_q + mha.n_kv_heads * mha.d_k]
    maps = []
    for h in range(mha.n_heads):
        g = h * mha.n_kv_heads // mha.n_heads
        q_h, k_h = q[..., h * mha.d_k : (h + 1) * mha.d_k], k[..., g * mha.d_k : (g + 1) * mha.d_k]
        scores = q_h @ k_h.transpose(0, 2, 1) / math.sqrt(mha.d_k)
        scores = scores + (bias[h] if np.ndim(bias) else bias)
        allowed = np.ones(scores.shape, dtype=bool) if mask is None else np.broadcast_to(mask, scores.shape).copy()
        if mha.causal:
            allowed = allowed & np.tril(np.ones(scores.shape[1:], dtype=bool))
        e = np.where(allowed, np.exp(scores), 0)
        maps.append(e / np.where(e.sum(-1, keepdims=True) == 0, 1, e.sum(-1, keepdims=True)))
    return np.stack(maps, 1)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_maps_are_those_of_the_formula(kv_heads, causal, masked):
    tg.manual_seed(1)
    mha = nn.MultiHeadAttention(16, 4, n_kv_heads=kv_heads, causal=causal).double()
    random = np.random.default_rng(2)
    x = random.standard_normal((2, 5, 16))
    mask = random.random((5, 5)) < 0.6 if masked else None
    with tg.inspect.attention_maps(mha) as maps:
        y = mha(tg.tensor(x), mask=None if mask is None else tg.tensor(mask))
    assert isinstance(y, tg.Tensor), "the layer gives what it gives without being watched"
    assert np.allclose(maps["MultiHeadAttention"], by_hand(mha, x, mask), atol=1e-12)


def test_maps_with_alibi():
    mha = nn.MultiHeadAttention(16, 4, position="alibi").double()
    x = np.random.default_rng(2).standard_normal((2, 5, 16))
    with tg.inspect.attention_maps(mha) as maps:
        mha(tg.tensor(x))
    distance = np.abs(np.arange(5)[:, None] - np.arange(5))
    slopes = 2.0 ** (-8 * (np.arange(4) + 1) / 4)
    assert np.allclose(maps["MultiHeadAttention"], by_hand(mha, x, bias=-slopes[:, None, None] * distance))


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", "alibi", None])
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_maps_of_a_gpt_give_its_heads_outputs(position, kv_heads):
    """The recorded weights times the values are the input of out_proj of the unwatched model; the logits do not change."""
    model = gpt(position=position, n_kv_head=kv_heads)
    with tg.inspect.record(model, "*.out_proj", inputs=True) as heads, tg.inspect.record(model, "*.in_proj") as qkv:
        logits = model(IDS)
    with tg.inspect.attention_maps(model) as maps:
        assert np.allclose(model(IDS).numpy(), logits.numpy(), atol=1e-12)
    assert list(maps) == ["blocks.0.attention.f", "blocks.1.attention.f"]
    for name, weights in maps.items():
        mha = dict(model.named_modules())[name]
        v = qkv[f"{name}.in_proj"][..., -mha.n_kv_heads * mha.d_v :].reshape(3, 6, mha.n_kv_heads, mha.d_v)
        v = v.transpose(0, 2, 1, 3).repeat(mha.n_heads // mha.n_kv_heads, 1)
        y = (weights @ v).transpose(0, 2, 1, 3).reshape(3, 6, -1)
        assert np.allclose(y, heads[f"{name}.out_proj"], atol=1e-12)
        assert np.allclose(weights.sum(-1), 1) and (np.triu(weights, 1) == 0).all()


def test_maps_when_the_caller_wants_the_weights_too_and_with_a_cache():
    mha = nn.MultiHeadAttention(8, 2, causal=True)
    with tg.inspect.attention_maps(mha) as maps:
        _, weights = mha(tg.ones(1, 3, 8), need_weights=True)
        assert np.array_equal(maps["MultiHeadAttention"], weights.detach().numpy())
        cache = nn.KVCache(8)
        mha(tg.ones(1, 3, 8), cache=cache)
        mha(tg.ones(1, 1, 8), cache=cache)
    assert maps["MultiHeadAttention"].shape == (1, 2, 1, 4)


def test_the_weight_at_a_place_of_each_example():
    model = gpt()
    with tg.inspect.attention_maps(model, "blocks.1.*") as maps:
        model(IDS)
    keys = np.array([0, 3, 2])
    found = maps.weight("blocks.1.attention.f", -1, keys)
    assert found.shape == (3, 4)
    assert np.array_equal(found[1], maps["blocks.1.attention.f"][1, :, -1, 3])


def test_a_model_without_attention_is_an_error():
    with (
        pytest.raises(ValueError, match="no MultiHeadAttention of Linear is called"),
        tg.inspect.attention_maps(nn.Linear(2, 2)),
    ):
        pass


# -- ablation ------------------------------------------------------------------------------------------------------------


def test_without_a_head_its_columns_of_the_output_are_missing():
    tg.manual_seed(0)
    mha = nn.MultiHeadAttention(16, 4, d_v=6).double()
    x = tg.randn(2, 5, 16, dtype=tg.float64)
    with tg.inspect.record(mha, "out_proj", inputs=True) as seen:
        y = mha(x).numpy()
    part = seen["out_proj"][..., 6:12] @ mha.W_O.numpy()[:, 6:12].T
    with tg.inspect.ablate(mha, {"MultiHeadAttention": [1]}):
        assert np.allclose(mha(x).numpy(), y - part, atol=1e-12)
    with tg.inspect.ablate(mha, {"MultiHeadAttention": range(4)}):
        assert np.allclose(mha(x).numpy(), mha.out_proj.bias.numpy())


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_without_a_neuron_its_value_is_missing(activation):
    ffn = nn.FeedForward(8, 12, activation).double()
    x = tg.randn(2, 5, 8, dtype=tg.float64)
    with tg.inspect.record(ffn, "W2", inputs=True) as seen:
        y = ffn(x).numpy()
    a, values = seen["W2"], ffn.W2.weight.numpy()
    for to, instead in (("zero", 0.0), ("mean", a.mean((0, 1)))):
        change = ((instead - a)[..., [3, 7]]) @ values[:, [3, 7]].T
        with tg.inspect.ablate(ffn, {"FeedForward": [3, 7]}, to):
            assert np.allclose(ffn(x).numpy(), y + change, atol=1e-12)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_without_sublayers_only_the_stream_is_left(placement):
    model = gpt(placement=placement)
    with tg.inspect.record(model, "blocks.*", inputs=True) as inputs, tg.inspect.record(model, "blocks.*") as outputs:
        with tg.inspect.ablate(model, {"blocks.*.attention": "all", "blocks.*.feed_forward": "all"}):
            model(IDS)
    if placement == "pre":
        assert np.array_equal(inputs["blocks.0"], outputs["blocks.1"])
    with (
        tg.inspect.ablate(model, {"blocks.0.attention.f": "all"}),
        tg.inspect.record(model, "blocks.0.attention.f") as f,
    ):
        model(IDS)
    assert not f["blocks.0.attention.f"].any()


def test_the_mean_keeps_what_is_the_same_everywhere():
    model = gpt()
    with tg.inspect.ablate(model, {"blocks.0.feed_forward": "all"}, "mean"):
        with tg.inspect.record(model, "blocks.0.feed_forward.f") as seen:
            model(IDS)
    y = seen["blocks.0.feed_forward.f"].reshape(-1, 16)
    assert np.allclose(y, y[0]) and np.abs(y).max() > 0


def test_features_of_any_module_and_gradients_through_what_is_left():
    layer = nn.Linear(3, 4)
    x = tg.randn(2, 3, requires_grad=True)
    with tg.inspect.ablate(layer, {"Linear": [0, 2]}):
        y = layer(x)
        y.sum().backward()
    assert not y.detach().numpy()[:, [0, 2]].any()
    assert not layer.weight.grad.numpy()[[0, 2]].any() and layer.weight.grad.numpy()[[1, 3]].all()


def test_errors_of_ablate():
    model = gpt()
    for parts, error, text in (
        ({"blocks.0.attention": [4]}, IndexError, r"'blocks.0.attention' has heads 0 to 3, got \[4\]"),
        ({"blocks.0.feed_forward.f": [64]}, IndexError, r"neurons 0 to 63, got \[64\]"),
        ({"nothing": "all"}, ValueError, "ablate: no module of GPT is called 'nothing'"),
        ({"blocks.0.attention": "half"}, ValueError, "expected 'all' or a list of numbers, got 'half'"),
    ):
        with pytest.raises(error, match=text), tg.inspect.ablate(model, parts):
            pass
    with pytest.raises(ValueError, match="'zero' or 'mean', got 'one'"), tg.inspect.ablate(model, {}, "one"):
        pass
    with pytest.raises(TypeError, match="is a plain function"):
        with tg.inspect.ablate(nn.Residual(lambda x: x), {"Residual": "all"}):
            pass
    with pytest.raises(ValueError, match="say which parts"):
        tg.inspect.ablation_effects(nn.Linear(2, 2), lambda: 0.0)
    assert hooks_of(model) == 0


def test_effects_of_every_part():
    model = gpt()
    loss = lambda: model.loss(IDS[:, :-1], IDS[:, 1:])  # noqa: E731
    found = tg.inspect.ablation_effects(model, loss)
    assert len(found) == 2 * (2 + 4) and found.baseline == loss().item()
    with tg.inspect.ablate(model, {"blocks.1.attention": [2]}):
        assert found["blocks.1.attention.f head 2"] == loss().item()
    assert "blocks.0.feed_forward" in str(found) and "+" in str(found)
