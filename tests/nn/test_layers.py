"""The layers against formulas written with numpy, and their gradients against finite differences."""

import math
import random

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import nn

RNG = np.random.default_rng(0)


def rand(*shape: int) -> tg.Tensor:
    return tg.tensor(RNG.standard_normal(shape))


def heads_by_hand(mha: nn.MultiHeadAttention, x: np.ndarray, allowed: np.ndarray, bias: float | np.ndarray = 0.0):
    """The outputs of each head through its own columns of W_O, and the weights, one head at a time."""
    parts, maps = [], []
    wq, wk, wv, wo = (w.detach().numpy() for w in (mha.W_Q, mha.W_K, mha.W_V, mha.W_O))
    group = mha.n_heads // mha.n_kv_heads
    for h in range(mha.n_heads):
        q = x @ wq[h * mha.d_k : (h + 1) * mha.d_k].T
        k = x @ wk[h // group * mha.d_k : (h // group + 1) * mha.d_k].T
        v = x @ wv[h // group * mha.d_v : (h // group + 1) * mha.d_v].T
        s = np.where(allowed, q @ k.swapaxes(1, 2) / math.sqrt(mha.d_k) + bias, -np.inf)
        e = np.exp(s - s.max(-1, keepdims=True))
        w = e / e.sum(-1, keepdims=True)
        maps.append(w)
        parts.append(w @ v @ wo[:, h * mha.d_v : (h + 1) * mha.d_v].T)
    return sum(parts), np.stack(maps, 1)


@pytest.mark.parametrize("kv", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d_v", [None, 3])
def test_attention_is_the_sum_of_its_heads(kv: int, causal: bool, d_v: int | None) -> None:
    mha = nn.MHA(8, 4, n_kv_heads=kv, d_v=d_v, bias=False, causal=causal).double()
    x = rand(2, 5, 8)
    allowed = np.tril(np.ones((5, 5), bool)) if causal else np.ones((5, 5), bool)
    expected, maps = heads_by_hand(mha, x.numpy(), allowed)
    y, weights = mha(x, need_weights=True)
    assert np.allclose(mha(x).detach().numpy(), expected, atol=1e-10)
    assert np.allclose(y.detach().numpy(), expected, atol=1e-10)
    assert np.allclose(weights.detach().numpy(), maps, atol=1e-10)


def test_masks_bool_and_float() -> None:
    mha = nn.MHA(8, 2, bias=False).double()
    x = rand(2, 4, 8)
    mask = RNG.random((4, 4)) < 0.6
    mask[:, 0] = True
    expected, _ = heads_by_hand(mha, x.numpy(), mask)
    added = np.where(mask, 0.0, -np.inf)
    for m in (mask, tg.tensor(mask), added, tg.tensor(added)):
        assert np.allclose(mha(x, mask=m).detach().numpy(), expected, atol=1e-10)
        assert np.allclose(mha(x, mask=m, need_weights=True)[0].detach().numpy(), expected, atol=1e-10)
    nothing = mha(x, mask=np.zeros((4, 4), bool), need_weights=True)
    assert (nothing[0].detach().numpy() == 0).all() and (nothing[1].detach().numpy() == 0).all()


def test_cross_attention_and_where_inputs_are_shared() -> None:
    mha = nn.MHA(8, 2).double()
    x, z = rand(2, 3, 8), rand(2, 5, 8)
    y = mha(x, z)
    assert y.shape == (2, 3, 8)
    copy = tg.tensor(z.numpy())
    for args in ((x, z, copy), (x, copy, z)):
        assert np.allclose(mha(*args).detach().numpy(), y.detach().numpy(), atol=1e-12)
    self_attention = mha(x).detach().numpy()
    same = tg.tensor(x.numpy())
    for args in ((x, same), (x, same, x), (x, x, same)):
        assert np.allclose(mha(*args).detach().numpy(), self_attention, atol=1e-12)
    with pytest.raises(ValueError, match=r"MultiHeadAttention\(8, 2\): key must be"):
        mha(x, rand(2, 5, 7))
    with pytest.raises(ValueError, match="self-attention"):
        mha(x, z, cache=nn.KVCache(8))


@pytest.mark.parametrize("position", [None, "rotary", "alibi"])
def test_bc08_bc52_cache_in_chunks_equals_all_at_once(position: str | None) -> None:
    """BC-08: 12 = 5 + 4 + 1 + 1 + 1 (bottom-right mask), for batches of 1 and 3; BC-52: NaN behind the valid rows."""
    for batch in (1, 3):
        mha = nn.MHA(8, 4, n_kv_heads=2, causal=True, position=position)
        x = tg.tensor(RNG.standard_normal((batch, 12, 8)).astype(np.float32))
        cache, start, parts = nn.KVCache(40), 0, []
        for n in (5, 4, 1, 1, 1):
            parts.append(mha(x[:, start : start + n], cache=cache).numpy())
            layer = cache[0]
            assert start or (layer._keys[:, :, layer.length :] == 0).all()
            layer._keys[:, :, layer.length :] = np.nan
            layer._values[:, :, layer.length :] = np.nan
            start += n
        assert np.abs(np.concatenate(parts, 1) - mha(x).detach().numpy()).max() < 1e-5
        with pytest.raises(ValueError, match=r"KVCache\(40\): holds 12"):
            mha(tg.zeros(batch, 29, 8), cache=cache)


def test_bc09_rotary_values() -> None:
    """BC-09, BC-54: half-split, position 1 and 0, base 10000."""
    x = tg.tensor(np.array([[[[1.0, 2, 3, 4]]]]))
    rotary = nn.Rotary(4)
    assert np.allclose(rotary(x, 1).numpy(), [-1.984111, 1.959901, 2.462378, 4.019800], atol=1e-6)
    assert (rotary(x).numpy() == x.numpy()).all()
    with pytest.raises(ValueError, match="even"):
        nn.Rotary(5)


def test_alibi_slopes_and_bias() -> None:
    assert np.allclose(nn.ALiBi(8).slopes, 2.0 ** -np.arange(1, 9))
    six = [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    assert np.allclose(nn.ALiBi(6).slopes, six)
    assert [len(nn.ALiBi(n).slopes) for n in range(1, 20)] == list(range(1, 20))
    mha = nn.MHA(6, 3, bias=False, causal=True, position="alibi").double()
    x = rand(2, 5, 6)
    weights = mha(x, need_weights=True)[1].detach().numpy()
    for h in range(3):
        expected = heads_by_hand(mha, x.numpy(), np.tril(np.ones((5, 5), bool)), mha.position.bias(5, 5)[h])[1][:, h]
        assert np.allclose(weights[:, h], expected, atol=1e-10)
    assert np.allclose(mha(x).detach().numpy(), mha(x, need_weights=True)[0].detach().numpy(), atol=1e-10)


def test_sinusoidal_and_learned() -> None:
    table = nn.SinusoidalPosition(10, 6)(tg.zeros(1, 10, 6)).numpy()
    assert abs(table[3, 2] - math.sin(3 / 10000 ** (2 / 6))) < 1e-6
    assert abs(table[3, 3] - math.cos(3 / 10000 ** (2 / 6))) < 1e-6
    assert nn.SinusoidalPosition(4, 5)(tg.zeros(1, 4, 5)).shape == (4, 5)
    with pytest.raises(IndexError, match="below 4"):
        nn.LearnedPosition(4, 2)(tg.zeros(1, 3, 2), offset=2)


def test_bc13_embedding_ids() -> None:
    """BC-13."""
    for bad, value in (([[0, 5]], "5"), ([[0, -1]], "-1")):
        with pytest.raises(IndexError, match=value):
            nn.Embedding(5, 2)(tg.tensor(bad))
    layer = nn.Embedding(5, 2, padding_idx=1)
    assert (layer.weight.detach().numpy()[1] == 0).all()
    (layer(tg.tensor([1, 1, 2])) * tg.randn(3, 2)).sum().backward()
    assert (layer.weight.grad.numpy()[1] == 0).all() and (layer.weight.grad.numpy()[2] != 0).all()


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(4, 3),
        nn.Linear(4, 3, bias=False),
        nn.LayerNorm(4),
        nn.RMSNorm(4),
        nn.BatchNorm1d(3),
        *[nn.FeedForward(4, 5, a) for a in [*nn.ACTIVATIONS, *nn.GATED] if a not in ("relu", "reglu")],
        nn.MHA(4, 2, causal=True),
        nn.MHA(4, 4, n_kv_heads=2, d_k=2, d_v=3, position="rotary"),
        nn.MHA(4, 2, position="alibi"),
        nn.TransformerBlock(4, 2, causal=True),
        nn.TransformerBlock(4, 2, placement="post", norm="rms", activation="swiglu"),
    ],
    ids=lambda m: type(m).__name__ + m.extra_repr(),
)
def test_gradients(layer: nn.Module) -> None:
    layer.double()
    assert tg.gradcheck(layer, (tg.tensor(RNG.standard_normal((2, 3, 4)), requires_grad=True),), mode="fast")


def test_batch_norm_running_values() -> None:
    layer = nn.BatchNorm1d(2)
    x = RNG.standard_normal((6, 2)).astype(np.float32)
    y = layer(tg.tensor(x)).detach().numpy()
    assert np.allclose(y, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), atol=1e-5)
    assert np.allclose(layer.running_mean.numpy(), 0.1 * x.mean(0), atol=1e-6)
    assert np.allclose(layer.running_var.numpy(), 0.9 + 0.1 * x.var(0, ddof=1), atol=1e-6)
    layer.eval()
    expected = (x - layer.running_mean.numpy()) / np.sqrt(layer.running_var.numpy() + 1e-5)
    assert np.allclose(layer(tg.tensor(x)).detach().numpy(), expected, atol=1e-5)
    with pytest.raises(ValueError, match="more than one value"):
        nn.BatchNorm1d(2)(tg.zeros(1, 2))


def test_bc57_dropout_edges() -> None:
    """BC-57: p = 0 and 1, the mean kept, no_grad is not eval."""
    x = tg.ones(200, 100)
    assert (nn.Dropout(0.0)(x).numpy() == 1).all() and (nn.Dropout(1.0)(x).numpy() == 0).all()
    with tg.no_grad():
        y = nn.Dropout(0.5)(x).numpy()
    assert set(np.unique(y)) == {0.0, 2.0} and abs(y.mean() - 1) < 0.05


def test_residual_placements_and_errors() -> None:
    norm, f = nn.LayerNorm(4), nn.Linear(4, 4)
    x = tg.randn(2, 4)
    pre, post = nn.Residual(f, norm), nn.Residual(f, norm, "post")
    assert np.allclose(pre(x).detach().numpy(), (x + f(norm(x))).detach().numpy())
    assert np.allclose(post(x).detach().numpy(), norm(x + f(x)).detach().numpy())
    with pytest.raises(ValueError, match="keep the shape"):
        nn.Residual(nn.Linear(4, 3))(x)
    with pytest.raises(ValueError, match="placement"):
        nn.Residual(f, norm, "middle")


def test_errors_say_expected_and_got() -> None:
    with pytest.raises(ValueError) as error:
        nn.LayerNorm(512)(tg.zeros(4, 16, 256))
    assert str(error.value) == "LayerNorm(512): the last axis of x must be 512, got x of shape (4, 16, 256)"
    with pytest.raises(ValueError, match=r"Linear\(3, 2\): the last axis of x must be 3"):
        nn.Linear(3, 2)(tg.zeros(1, 4))
    with pytest.raises(ValueError, match="activation must be one of"):
        nn.FeedForward(4, activation="gelu2")


def test_containers_and_losses() -> None:
    seq = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    assert len(seq[1:3]) == 2 and seq[-1] is seq[3] and list(seq)[0] is seq[0]
    with pytest.raises(IndexError):
        seq[4]
    x, y = rand(5), tg.tensor(RNG.integers(0, 2, 5).astype(np.float64))
    p = 1 / (1 + np.exp(-x.numpy()))
    expected = -(y.numpy() * np.log(p) + (1 - y.numpy()) * np.log(1 - p))
    assert np.allclose(nn.BCEWithLogitsLoss("none")(x, y).numpy(), expected)
    assert np.isfinite(nn.BCEWithLogitsLoss()(tg.tensor([1000.0, -1000.0]), tg.tensor([0.0, 1.0])).item())
    assert abs(nn.L1Loss("sum")(x, y).item() - np.abs(x.numpy() - y.numpy()).sum()) < 1e-9


def test_init_statistics() -> None:
    random.seed(0)
    tg.manual_seed(0)
    w = tg.zeros(200, 100)
    assert abs(nn.init.normal_(w, std=0.02).numpy().std() - 0.02) < 1e-3
    assert abs(nn.init.xavier_uniform_(w).numpy().max() - math.sqrt(6 / 300)) < 1e-3
    assert abs(nn.init.kaiming_normal_(w).numpy().std() - math.sqrt(2 / 100)) < 2e-3
    assert np.abs(nn.init.trunc_normal_(w, std=1.0).numpy()).max() <= 2


def test_cross_attention_of_a_fresh_layer_and_after_writing_into_a_named_view() -> None:
    """The named weights are views: writing into them before a forward is no fault, also in float32 and with parts."""
    tg.manual_seed(0)
    mha = nn.MultiHeadAttention(8, 2)
    query, memory = tg.randn(2, 3, 8), tg.randn(2, 5, 8)
    with tg.no_grad():
        mha.W_V.detach().copy_(tg.ones(8, 8))
    y = mha(query, memory)
    y.sum().backward()
    assert y.shape == (2, 3, 8) and mha.in_proj.weight.grad is not None
    assert np.array_equal(mha.W_V.T.detach().numpy(), np.ones((8, 8), np.float32))
