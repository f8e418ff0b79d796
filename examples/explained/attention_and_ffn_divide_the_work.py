"""Attention and FFN divide the work: what moves between positions needs attention, what is stored needs the FFN (注意力与前馈网络的分工)

Claim. Attention (注意力) brings information from other positions: copying (复制) and reference (指代) need it. The FFN (前馈网络) holds what the text does not say: facts (事实)
need it. Neither can stand in for the other.

Expected. One block answers three kinds of question: copy the value of the item that stands last; give the value of the item with the key asked for; give the answer to
one of 256 facts (16 subjects, 16 relations), which stand in no sequence. It is right at least 0.95 of the time on each (chance: 0.125). With attention's part replaced by
its mean, copying and reference are right at most 0.3 and facts at least 0.3 more often than they; with the FFN's part replaced by its mean, facts are right at most 0.5 and copying
and reference at least 0.3 more often. Models trained without attention (a wider FFN instead) are right at most 0.3 on copying and reference, at least 0.9 on facts;
models trained without FFN (three attention layers instead) at least 0.9 on copying and reference, at most 0.7 on facts.

Control. The three models have as many parameters, to a ratio of 0.95 to 1.05: what is missing is a kind of layer, not size. Of an untrained model, no replacement changes a share of
right answers by more than 0.15: what is lost is what was learned.

Note. Replaced by its mean over all questions of the same kind (mean ablation, 消融): the layer's usual part stays, what depends on the question goes.
The two halves ask different things: what a trained block does with its layers, and what each layer could do. If attention layers alone learn the facts, too, then they have what it takes (weights that store,
and softmax and norm that are not linear), and the FFN is where a block puts facts when it has one, not the only place for them.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, fit

ITEMS, VALUES, NAMES, D = 6, 8, 16, 32  # NAMES: subjects, and as many relations
FACT = 2
TASKS = ("copying", "reference", "facts")


class Model(nn.Module):
    """Items (key and value) and a question (what it is about, and the relation asked for), then attention and FFN."""

    def __init__(self, without: str = ""):
        super().__init__()
        self.keys, self.values, self.places = nn.Embedding(ITEMS, D), nn.Embedding(VALUES, D), nn.Embedding(ITEMS, D)
        self.topics, self.relations = nn.Embedding(NAMES + ITEMS + 1, D), nn.Embedding(NAMES + 2, D)
        attention = [
            nn.Residual(nn.MultiHeadAttention(D, 2), nn.LayerNorm(D)) for _ in range(3 if without == "FFN" else 1)
        ]
        ffn = nn.Residual(nn.FeedForward(D, 6 * D if without == "attention" else 4 * D), nn.LayerNorm(D))
        layers = {"": [*attention, ffn], "FFN": attention, "attention": [ffn]}[without]
        self.layers, self.norm, self.read = nn.Sequential(*layers), nn.LayerNorm(D), nn.Linear(D, VALUES)

    def forward(self, keys: Any, values: Any, topic: Any, relation: Any) -> tg.Tensor:
        items = self.keys(tg.tensor(keys)) + self.values(tg.tensor(values)) + self.places(tg.arange(ITEMS))
        question = self.topics(tg.tensor(topic[:, None])) + self.relations(tg.tensor(relation[:, None]))
        return self.read(self.norm(self.layers(tg.cat([items, question], 1))[:, -1]))  # type: ignore[no-any-return]


def batch(random: np.random.Generator, n: int, facts: Any) -> tuple[tuple[Any, ...], Any, Any]:
    """Questions, their answers, and of which kind they are."""
    keys = random.permuted(np.tile(np.arange(ITEMS), (n, 1)), axis=1)
    values = random.integers(0, VALUES, (n, ITEMS))
    kind = random.choice(3, n, p=(0.2, 0.3, 0.5))
    place, subject, fact = (random.integers(0, m, n) for m in (ITEMS, NAMES, NAMES))
    rows = np.arange(n)
    topic = np.choose(kind, [np.full(n, NAMES + ITEMS), NAMES + keys[rows, place], subject])
    relation = np.choose(kind, [np.full(n, NAMES), np.full(n, NAMES + 1), fact])
    answer = np.choose(kind, [values[:, -1], values[rows, place], facts[subject, fact]])
    return (keys, values, topic, relation), answer, kind


def right(model: Model, questions: tuple[Any, ...], answer: Any, kind: Any) -> Any:
    """The share of right answers to each kind of question."""
    with tg.no_grad():
        hits = model(*questions).numpy().argmax(1) == answer
    return np.array([hits[kind == k].mean() for k in range(3)])


def replaced(model: Model, layer: int, test: tuple[Any, ...]) -> Any:
    """The same while one layer adds to each question its mean over all questions of that kind."""
    kind = test[2]

    def hook(module: Any, args: Any, output: tg.Tensor) -> tg.Tensor:
        means = np.stack([output.numpy()[kind == k].mean(0) for k in range(3)])
        return tg.tensor(means[kind])

    handle = model.layers[layer].f.register_forward_hook(hook)
    found = right(model, *test)
    handle.remove()
    return found


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    facts = random.integers(0, VALUES, (NAMES, NAMES))
    test = batch(random, size.pick(2000, 4000, 10000), facts)
    models, answers = {}, {}
    for without in ("", "attention", "FFN"):
        model = models[without] = Model(without)

        def loss(model: Model = model) -> Any:
            questions, answer, _ = batch(random, 64, facts)
            return F.cross_entropy(model(*questions), tg.tensor(answer))

        fit(model.parameters(), loss, size.pick(400, 800, 4000), lr=6e-3, warmup=20)
        answers[f"trained without {without}" if without else "whole"] = right(model, *test)
    raw, changes = Model(), []
    for i, name in enumerate(("attention", "FFN")):
        answers[f"{name} replaced"] = replaced(models[""], i, test)
        changes.append(np.abs(replaced(raw, i, test) - right(raw, *test)).max())
    counts = [m.layers.num_parameters() for m in models.values()]
    lost, kept = answers["attention replaced"], answers["FFN replaced"]
    values = {
        "whole": answers["whole"].min(),
        "attention_text": lost[:FACT].max(),
        "attention_facts": lost[FACT] - lost[:FACT].max(),
        "ffn_facts": kept[FACT],
        "ffn_text": kept[:FACT].min() - kept[FACT],
        "no_attention_text": answers["trained without attention"][:FACT].max(),
        "no_attention_facts": answers["trained without attention"][FACT],
        "no_ffn_text": answers["trained without FFN"][:FACT].min(),
        "no_ffn_facts": answers["trained without FFN"][FACT],
        "parameters": max(counts) / min(counts),
        "untrained": max(changes),
    }
    return Result(values, {"answers": answers})


def draw(figure: Any, results: list[Result]) -> None:
    axes = figure.subplots()
    names = ("whole", "attention replaced", "FFN replaced", "trained without attention", "trained without FFN")
    for k, (task, colour) in enumerate(zip(TASKS, ("tab:cyan", "tab:blue", "tab:orange"), strict=True)):
        for i, name in enumerate(names):
            shares = [r.data["answers"][name][k] for r in results]
            x = i + 0.27 * (k - 1)
            axes.bar(x, np.mean(shares), 0.25, color=colour, label=None if i else task)
            axes.plot([x] * len(shares), shares, "k.")
    axes.axhline(1 / VALUES, color="k", ls=":", lw=1)
    axes.text(1.01, 1 / VALUES, "chance", va="center", fontsize=10, transform=axes.get_yaxis_transform())
    axes.set_xticks(range(len(names)), [n.replace(" ", "\n", 1) for n in names])
    axes.set(title="right answers", ylim=(0, 1.05))
    axes.legend(ncols=1, loc="center left", bbox_to_anchor=(1, 0.5))


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    15,
    (
        Check("whole", "whole model: the worst kind of question", at_least=0.95),
        Check("attention_text", "attention replaced: copying or reference, the better", at_most=0.3),
        Check("attention_facts", "attention replaced: facts, above these", at_least=0.3),
        Check("ffn_facts", "FFN replaced: facts", at_most=0.5),
        Check("ffn_text", "FFN replaced: copying or reference, the worse, above facts", at_least=0.3),
        Check("no_attention_text", "trained without attention: copying or reference, the better", at_most=0.3),
        Check("no_attention_facts", "trained without attention: facts", at_least=0.9),
        Check("no_ffn_text", "trained without FFN: copying or reference, the worse", at_least=0.9),
        Check("no_ffn_facts", "trained without FFN: facts", at_most=0.7),
        Check("parameters", "parameters, largest / smallest of the three models", 0.95, 1.05, control=True),
        Check("untrained", "untrained model: largest change by a replacement", at_most=0.15, control=True),
    ),
    run,
    draw,
    size=(12, 4.5),
)
