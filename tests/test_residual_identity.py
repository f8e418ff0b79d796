"""The identity path: the argument, step by step.

1. y = x + F(x) has the Jacobian I + J_F.           4. After a norm the identity is no longer the identity.
2. So whatever F does, the gradient arrives.         5. Through many blocks only the identity keeps a gradient alive.
3. A block of two is (I + J2)(I + J1).               6. And it guarantees nothing: F = -x.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import models, nn
from tinygrad_tf.inspect.identity import jacobian, jacobian_by_differences

T, D = 3, 4
EYE = np.eye(T * D)


def stream(seed: int = 0) -> Any:
    return tg.tensor(np.random.default_rng(seed).standard_normal((1, T, D)))


def branch(name: str) -> Any:
    tg.manual_seed(1)
    return nn.MultiHeadAttention(D, 2, causal=True) if name == "attention" else nn.FeedForward(D, 8)


# -- 1. the Jacobian of a residual is I + J_F --------------------------------------------------------------------------


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("name", ["attention", "feed_forward"])
def test_a_residual_is_the_identity_plus_its_branch(name: str, normed: bool) -> None:
    """J by differences, J_F by backward through the branch alone: what is left is I."""
    f, norm = branch(name), nn.LayerNorm(D) if normed else None
    residual = nn.Residual(f, norm).double()
    x = stream().numpy()
    j_f = jacobian((lambda t: f(norm(t))) if norm is not None else f, x)
    assert np.abs(j_f).max() > 1e-2
    assert np.allclose(jacobian_by_differences(residual, x, 1e-5) - j_f, EYE, atol=1e-7)


# -- 2. so a gradient arrives, whatever F does -------------------------------------------------------------------------


def test_a_branch_of_zero_passes_the_gradient_on_bit_for_bit() -> None:
    tg.manual_seed(0)
    block = nn.TransformerBlock(8, 2)
    for last in (block.attention.f.out_proj, block.feed_forward.f.W2):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    x, g = tg.randn(2, 5, 8, requires_grad=True), tg.randn(2, 5, 8)
    (found,) = tg.grad(block(x), x, g)
    assert np.array_equal(found.numpy(), g.numpy())


def test_a_gradient_comes_back_as_itself_and_what_the_branch_adds() -> None:
    residual = nn.Residual(branch("feed_forward"), nn.LayerNorm(D)).double()
    x = stream().requires_grad_()
    g = tg.tensor(np.random.default_rng(5).standard_normal(x.shape))
    (whole,) = tg.grad(residual(x), x, g)
    (through_f,) = tg.grad(residual.f(residual.norm(x)), x, g)
    assert np.allclose(whole.numpy(), g.numpy() + through_f.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_in_a_model_skip_and_branch_add_up_at_every_residual(placement: str, as_tensor: bool) -> None:
    tg.manual_seed(0)
    config = models.GPTConfig(vocab_size=11, block_size=8, n_layer=3, n_head=2, n_embd=8, placement=placement)
    gpt = models.GPT(config).double()
    ids = np.random.default_rng(0).integers(0, 11, (2, 8))
    loss = gpt.loss(ids, ids)
    paths = tg.inspect.gradient_paths(gpt, loss if as_tensor else lambda: gpt.loss(ids, ids))
    names = [f"blocks.{i}.{part}" for i in range(3) for part in ("attention", "feed_forward")]
    assert [s.name for s in paths] == names and paths.adds_up
    assert all(s.error < 1e-12 and s.elsewhere == 0 and s.branch > 0 for s in paths)
    if placement == "pre":  # what leaves one Residual is what enters the one below
        assert np.allclose([s.whole for s in paths][1:], [s.skip for s in paths][:-1], rtol=1e-9)
    assert all(p.grad is None for p in gpt.parameters())


def test_the_split_is_that_of_the_formula() -> None:
    """One Residual, by hand: the norms, the cosine."""
    w = np.random.default_rng(3).standard_normal((D, D))
    residual = nn.Residual(lambda t: t @ tg.tensor(w))
    x = stream()
    g = 2 * residual(x).numpy() / x.numpy().size
    (split,) = tg.inspect.gradient_paths(residual, lambda: (residual(x) ** 2).mean())
    b = g @ w.T
    assert np.allclose([split.skip, split.branch, split.whole], [np.linalg.norm(v) for v in (g, b, g + b)])
    assert np.isclose(split.cosine, (g * b).sum() / np.linalg.norm(g) / np.linalg.norm(b))


def test_a_stream_with_another_way_out_is_split_in_three() -> None:
    residual, x = nn.Residual(tg.tanh), stream().requires_grad_()

    def loss() -> Any:
        y = x * 2
        return (residual(y) * y).sum()

    (split,) = tg.inspect.gradient_paths(residual, loss)
    assert split.elsewhere > 0 and split.error < 1e-12


def test_paths_are_shown_as_a_table_as_data_and_as_a_picture(tmp_path: Path) -> None:
    block, x = nn.TransformerBlock(8, 2), tg.randn(1, 3, 8)
    paths = tg.inspect.gradient_paths(block, lambda: (block(x) ** 2).mean())
    assert "attention" in str(paths) and "add up to the whole" in str(paths)
    assert paths.data[0]["name"] == "attention" and len(paths) == 2
    paths.plot(tmp_path / "paths.png")
    assert (tmp_path / "paths.png").stat().st_size > 5000


def test_paths_say_what_they_need() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="no nn.Residual"):
        tg.inspect.gradient_paths(layer, lambda: layer(tg.ones(1, 2)).sum())
    block = nn.TransformerBlock(4, 2)
    with pytest.raises(ValueError, match="give a function"):
        tg.inspect.gradient_paths(block, (tg.ones(2, requires_grad=True) * 2).sum())


# -- 3. a block of two residuals is (I + J2)(I + J1) -------------------------------------------------------------------


def test_a_block_is_the_product_of_its_residuals() -> None:
    tg.manual_seed(2)
    block = nn.TransformerBlock(D, 2, d_ff=8, causal=True).double()
    x = stream(1)
    first, second = block.attention, block.feed_forward
    j1 = jacobian(lambda t: first.f(first.norm(t)), x.numpy())
    j2 = jacobian(lambda t: second.f(second.norm(t)), first(x).detach().numpy())
    product = (EYE + j2) @ (EYE + j1)
    assert np.allclose(jacobian_by_differences(block, x.numpy(), 1e-5), product, atol=1e-6)
    assert np.allclose(jacobian(block, x.numpy()), product, atol=1e-9)
    assert np.abs(product - (EYE + j2 + j1)).max() > 1e-3  # the fourth term, J2 J1, counts

    certificate = tg.inspect.identity_path(block, x, show=False)
    assert certificate.holds
    assert list(certificate.terms) == ["I", "J1", "J2", "J2 J1"]
    assert np.allclose([t[0] for t in certificate.terms.values()], [np.linalg.norm(m) for m in (EYE, j1, j2, j2 @ j1)])


def test_the_certificate_is_printed(capsys: Any) -> None:
    tg.inspect.identity_path(nn.TransformerBlock(D, 2).double(), stream())
    text = capsys.readouterr().out
    assert "I + J1 + J2 + J2 J1" in text and "The identity holds" in text


def test_a_false_residual_gets_no_certificate() -> None:
    """A block that is not x + F(x) although it says so."""

    class Halved(nn.Residual):
        def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
            return 0.5 * x + self.f(x)

    certificate = tg.inspect.identity_path(Halved(nn.FeedForward(D)).double(), stream(), show=False)
    assert not certificate.holds and abs(certificate.residuals[0].differences - 0.5) < 1e-6
    assert "does NOT hold" in str(certificate)


def test_the_certificate_does_not_trust_the_engine() -> None:
    """A wrong backward of the branch shows in the differences; the engine alone would agree with itself."""

    class Double(tg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 4 * g

    (row,) = tg.inspect.identity_path(nn.Residual(Double.apply), stream(), show=False).residuals
    assert row.engine < 1e-12 and row.differences > 1.9


def test_what_the_certificate_needs() -> None:
    with pytest.raises(TypeError, match="float64"):
        tg.inspect.identity_path(nn.TransformerBlock(D, 2), tg.ones(1, T, D))
    with pytest.raises(ValueError, match="1024"):
        tg.inspect.identity_path(nn.Residual(tg.exp), tg.zeros(1025, dtype=np.float64))
    with pytest.raises(ValueError, match="no nn.Residual"):
        tg.inspect.identity_path(nn.Linear(D, D).double(), stream())


def test_dropout_is_off_and_comes_back() -> None:
    block = nn.TransformerBlock(D, 2, dropout=0.5).double()
    assert tg.inspect.identity_path(block, stream(), show=False).holds
    assert block.training and block.attention.dropout.training


# -- 4. after a norm the identity is multiplied by the norm's Jacobian -------------------------------------------------


def test_post_norm_multiplies_the_identity() -> None:
    tg.manual_seed(3)
    block = nn.TransformerBlock(D, 2, placement="post").double()
    certificate = tg.inspect.identity_path(block, stream(2), show=False)
    assert certificate.holds and list(certificate.terms) == ["N2 N1", "N2 N1 J1", "N2 J2 N1", "N2 J2 N1 J1"]
    for row in certificate.residuals:
        assert row.norm is not None and row.identity > 0.1  # N is not I
        assert row.norm[-1] < 1e-6  # a layer norm forgets the mean and the size of each token
    x = stream(2)
    n = jacobian(block.attention.norm, x.numpy() + block.attention.f(x).detach().numpy())
    assert np.allclose(np.linalg.svd(n, compute_uv=False)[0], certificate.residuals[0].norm[0])


# -- 5. through many blocks, and 6. the counter-example: as the example measures them ----------------------------------


@pytest.fixture(scope="module")
def example() -> Any:
    path = Path(__file__).parent.parent / "examples" / "residual_identity.py"
    spec = importlib.util.spec_from_file_location("residual_identity", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def readings(example: Any) -> Any:
    return example.sweep((1, 12), steps=12)


def test_what_was_expected_of_depth_comes(example: Any, readings: Any) -> None:
    """The thresholds of the example, at 12 blocks."""
    before, after = readings
    for what, low, value, high, holds in example.verdicts(before, after):
        assert holds, f"{what}: {value:.3g}, expected {low:.3g} to {high:.3g}"


def test_thresholds_are_not_idle(example: Any, readings: Any) -> None:
    """A plain network measured as if it were a residual one, and the other way round, would fail."""
    plain, residual = (next(r for r in readings[0] if (r.kind, r.depth) == (k, 12)) for k in ("plain", "residual"))
    low, high = example.THRESHOLDS["residual"](12)
    assert not low <= plain.gradient <= high
    assert residual.gradient > example.THRESHOLDS["plain"](12)[1]


def test_the_picture_is_drawn(example: Any, readings: Any, tmp_path: Path) -> None:
    example.picture(tmp_path / "all.png", *readings, example.trained_gpt(steps=1)[1])
    assert (tmp_path / "all.png").stat().st_size > 20000


def test_a_residual_does_not_guarantee_that_information_survives(example: Any) -> None:
    assert example.nothing_survives() == 0.0
    assert not jacobian(nn.Residual(lambda t: -t), stream().numpy()).any()
