"""What is read off a model: the logit lens, linear probes, neurons; and that each finding has a picture."""

import builtins

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import models, nn
from tinygrad_tf.nn import functional as F

IDS = np.random.default_rng(0).integers(0, 13, (3, 6))
TARGETS = np.random.default_rng(1).integers(0, 13, (3, 6))


def gpt(**options):
    tg.manual_seed(0)
    fields = {"vocab_size": 13, "block_size": 8, "n_layer": 2, "n_head": 4, "n_embd": 16} | options
    return models.GPT(models.GPTConfig(**fields)).double()


# -- logit lens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"placement": "post"}, {"norm": "rms", "position": "rotary"}])
def test_the_lens_behind_the_last_layer_is_the_model(options):
    model = gpt(**options)
    lens = tg.inspect.logit_lens(model, IDS, TARGETS)
    p = F.softmax(model(IDS), -1).detach().numpy()
    wanted = np.take_along_axis(p, TARGETS[..., None], -1)[..., 0]
    assert np.allclose(lens.probability[-1], wanted) and np.allclose(lens.entropy[-1], -(p * np.log(p)).sum(-1))
    assert np.array_equal(lens.rank[-1], 1 + (p > wanted[..., None]).sum(-1))
    assert np.array_equal(lens.top[-1], p.argmax(-1)) and np.allclose(lens.divergence[-1], 0, atol=1e-12)
    assert (lens.divergence[0] > 1e-6).all()


def test_the_lens_in_the_middle_is_the_head_on_the_normed_stream():
    model = gpt(dropout=0.5)  # evaluation mode inside, training mode afterwards
    lens = tg.inspect.logit_lens(model, IDS, TARGETS)
    assert all(m.training for m in model.modules())
    model.eval()
    with tg.inspect.record(model, "blocks.0", "dropout") as seen:
        model(IDS)
    for row, name in enumerate(["dropout", "blocks.0"]):
        logits = model.lm_head(model.norm(tg.tensor(seen[name])))
        wanted = np.take_along_axis(F.softmax(logits, -1).detach().numpy(), TARGETS[..., None], -1)[..., 0]
        assert np.allclose(lens.probability[row], wanted)


def test_the_lens_behind_each_half_of_a_block_and_only_where_a_target_is():
    model, targets = gpt(), TARGETS.copy()
    targets[:, :-1] = -100
    lens = tg.inspect.logit_lens(model, IDS, targets, layers=("blocks.*.attention", "blocks.*.feed_forward"))
    assert lens.layers[:3] == ["input", "blocks.0.attention", "blocks.0.feed_forward"] and len(lens.layers) == 5
    assert np.allclose(lens.means()["probability"], lens.probability[:, :, -1].mean(1))
    bare = tg.inspect.logit_lens(model, IDS)
    assert bare.probability is None and list(bare.means()) == ["entropy", "divergence"]
    assert str(lens).splitlines()[0].split() == ["behind", "entropy", "divergence", "probability", "rank"]


def test_errors_of_the_lens():
    model = gpt()
    with pytest.raises(ValueError, match=r"targets must have the shape of ids, \(3, 6\), got \(6,\)"):
        tg.inspect.logit_lens(model, IDS, TARGETS[0])
    with pytest.raises(AttributeError, match="GPT has no module 'unembed'; say what"):
        tg.inspect.logit_lens(model, IDS, head="unembed")
    with pytest.raises(ValueError, match="logit_lens: no module of GPT is called 'layer.0'"):
        tg.inspect.logit_lens(model, IDS, layers="layer.0")


# -- probes --------------------------------------------------------------------------------------------------------------


def test_a_probe_finds_what_is_linear_and_nothing_where_nothing_is():
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 600)
    x = random.standard_normal((600, 10)) + 3 * np.eye(3, 10)[labels]
    found = tg.inspect.probe(x, labels)
    assert found.accuracy > 0.9 and 0 < found.spread < 0.05 and found.control < 0.45 and found.chance < 0.4
    none = tg.inspect.probe(random.standard_normal((600, 10)), labels)
    assert none.accuracy < 0.45
    assert tg.inspect.probe(x, labels) == found and tg.inspect.probe(x, labels, seed=1) != found


def test_groups_are_held_out_as_a_whole():
    """Each example occurs 5 times, its label is random: only a probe that has seen it elsewhere can know it."""
    random = np.random.default_rng(0)
    x, labels = random.standard_normal((60, 80)), random.integers(0, 2, 60)
    index = np.repeat(np.arange(60), 5)
    assert tg.inspect.probe(x[index], labels[index]).accuracy > 0.9
    assert tg.inspect.probe(x[index], labels[index], groups=index).accuracy < 0.7


def test_probes_take_sequences_and_layers():
    random = np.random.default_rng(0)
    x = random.standard_normal((40, 6, 8)).astype("f")
    labels = (x[..., 2] > 0).astype(int)
    found = tg.inspect.probe_layers({"a": x, "b": tg.tensor(x * 0 + 1.0)}, labels, splits=3)
    assert found["a"].accuracy > 0.9 and found["b"].accuracy < 0.65
    assert [line.split()[0] for line in str(found).splitlines()] == ["layer", "a", "b"]


def test_errors_of_probes():
    x = np.zeros((4, 3))
    with pytest.raises(
        ValueError, match=r"labels must have the shape of the features' leading axes, \(4,\), got \(3,\)"
    ):
        tg.inspect.probe(x, [0, 1, 0])
    with pytest.raises(ValueError, match="at least two different labels, got 1"):
        tg.inspect.probe(x, [0, 0, 0, 0])
    with pytest.raises(ValueError, match="leaves nothing on one side"):
        tg.inspect.probe(x, [0, 1, 0, 1], held_out=0.01)
    with pytest.raises(ValueError, match="groups must have"):
        tg.inspect.probe(x, [0, 1, 0, 1], groups=[0, 1])


# -- neurons -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_neuron_pushes_what_its_activation_adds_to_the_logits(norm):
    """A step of one neuron's activation changes the logits by pushes, if the final norm's division is held fixed."""
    model = gpt(norm=norm)
    nn.init.uniform_(model.norm.weight, 0.5, 1.5)
    ffn = model.blocks[1].feed_forward.f
    with tg.inspect.record(model, "blocks.1.feed_forward.f.W2", inputs=True) as seen:
        model(IDS)
    a = seen["blocks.1.feed_forward.f.W2"]
    found = tg.inspect.neuron(ffn, 7, activations=a, head=model.lm_head, norm=model.norm, k=4)
    assert np.array_equal(found.key, ffn.W1.weight.numpy()[7]) and np.array_equal(
        found.value, ffn.W2.weight.numpy()[:, 7]
    )
    x = np.random.default_rng(3).standard_normal(16)

    def logits(x):  # the norm without its division
        return model.lm_head.weight.numpy() @ ((x - x.mean() * (norm == "layer")) * model.norm.weight.numpy())

    assert np.allclose(found.pushes, logits(x + found.value) - logits(x))
    assert len(found.top) == 4 and found.top[0][1] == a[..., 7].max() and a[found.top[1][0]][7] == found.top[1][1]
    names = [name for name, _ in found.pushed([f"word {i}" for i in range(13)])]
    assert (
        len(names) == 8 and names[0] == f"word {found.pushes.argmax()}" and names[-1] == f"word {found.pushes.argmin()}"
    )
    assert "neuron 7" in str(found) and "pushes" in str(found)


def test_a_gated_neuron_has_a_gate():
    ffn = nn.FeedForward(8, 12, "swiglu")
    assert np.array_equal(tg.inspect.neuron(ffn, 3).gate, ffn.V.weight.detach().numpy()[3])
    assert tg.inspect.neuron(nn.FeedForward(8), 3).gate is None


def test_errors_of_neurons():
    ffn = nn.FeedForward(8, 12)
    with pytest.raises(IndexError, match="has neurons 0 to 11, got 12"):
        tg.inspect.neuron(ffn, 12)
    with pytest.raises(TypeError, match="expected an nn.FeedForward, such as block.feed_forward.f, got Linear"):
        tg.inspect.neuron(nn.Linear(2, 2), 0)
    with pytest.raises(ValueError, match=r"must be \(..., 12\), the input of W2, got shape \(2, 8\)"):
        tg.inspect.neuron(ffn, 0, activations=np.zeros((2, 8)))
    with pytest.raises(ValueError, match=r"weight must be \(V, 8\), got shape \(5, 9\)"):
        tg.inspect.neuron(ffn, 0, head=nn.Linear(9, 5))
    with pytest.raises(TypeError, match="norm must be"):
        tg.inspect.neuron(ffn, 0, head=nn.Linear(8, 5), norm=nn.BatchNorm1d(8))


# -- pictures ------------------------------------------------------------------------------------------------------------


def findings():
    model = gpt()
    with tg.inspect.record(model) as seen, tg.inspect.attention_maps(model) as maps:
        model(IDS)
    with tg.inspect.record(model, "*.W2", inputs=True) as hidden:
        model(IDS)
    ffn = model.blocks[0].feed_forward.f
    return {
        "activations": seen,
        "attention": maps,
        "lens": tg.inspect.logit_lens(model, IDS, TARGETS),
        "probes": tg.inspect.probe_layers({n: seen[n] for n in ("blocks.0", "blocks.1")}, IDS % 2),
        "neuron": tg.inspect.neuron(
            ffn, 3, activations=hidden["blocks.0.feed_forward.f.W2"], head=model.lm_head, norm=model.norm
        ),
        "effects": tg.inspect.ablation_effects(model, lambda: model.loss(IDS, TARGETS)),
        "paths": tg.inspect.gradient_paths(model, lambda: model.loss(IDS, TARGETS)),
    }


def test_each_finding_has_a_picture(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    for name, found in findings().items():
        path = tmp_path / f"{name}.png"
        figure = found.plot(path)
        assert path.stat().st_size > 5000 and figure.axes, name
    true = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError
        return true(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="Effects.plot needs matplotlib: pip install"):
        findings()["effects"].plot()
