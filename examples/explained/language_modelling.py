"""A language model: ids → embedding + position → blocks → head → softmax; the blocks refine one stream (语言建模, 残差流)

Claim. A block (Transformer 块) takes (B, T, d_model) and gives (B, T, d_model); the LM head (语言模型头) and softmax alone turn the stream into
probabilities. Blocks refine rather than predict: read off behind every layer by the final norm and the head (logit lens), the prediction comes
into being little by little. Shallow, middle and deep layers tend to hold different things: word form (词形), relation (关系), answer (答案).

Expected. A GPT of 4 blocks learns sentences of a relation word among fillers, a subject (each in several forms) and the object that a
table of 32 facts has for the two; its loss comes to at most 0.05 nats above the language's entropy. Of the outputs of blocks, 0 have another
shape than the input; embedding plus all that the sublayers added is what the norm reads, to 1e-5. The lens at the subject gives
the right object at most 0.3 before the first block and at least 0.95 behind the last; no half of a block makes it worse, in KL to the final
prediction, by more than 0.1 nats, and no half alone does more than 0.8 of the way. Linear probes (线性探针) at the subject, held out
(for the answer, on facts that they were not fitted to): the form is right at least 0.95 of the time in the input; the relation is read
best at least 1 half block after the form, and then at least 0.9 of the time; the answer is read best at least 1 half block after
the relation, at least 0.7 of the time. A tendency (倾向), not a rule: at the end the word form can still be read, at least 0.5.

Control. Probes for shuffled labels find the relation (chance 0.25) at most 0.35 of the time in any layer. In the untrained model no layer has the
answer more than 0.5 of the time. In the input the answer is read at most 0.5, the relation at most 0.4 of the time.

Note. A probe finds what is there, not what is used: it finds the relation in the untrained model as well, more often than by chance (see the
table), since random attention mixes the words.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import models

from .frame import Check, Experiment, Result, Size, fit

WORDS, RELATIONS, FORMS, SUBJECTS, OBJECTS, FILLERS = 2, 4, 2, 8, 8, 8  # words per relation, forms per subject
FIRST_SUBJECT = RELATIONS * WORDS
FIRST_OBJECT = FIRST_SUBJECT + SUBJECTS * FORMS
FIRST_FILLER = FIRST_OBJECT + OBJECTS
VOCAB, T, PLACE = FIRST_FILLER + FILLERS, 4, 3  # the subject is the last word of the input
HALVES = [f"blocks.{i}.{half}" for i in range(4) for half in ("attention", "feed_forward")]
SHORT = ["input", *(f"{half} {i + 1}" for i in range(4) for half in ("attention", "FFN"))]
KINDS = ("word form", "relation", "answer")


class Language:
    """Sentences, and what there is to know of each."""

    def __init__(self, random: np.random.Generator):
        even = np.resize(np.arange(OBJECTS), SUBJECTS * RELATIONS)
        self.facts = random.permutation(even).reshape(RELATIONS, SUBJECTS)
        first = -np.log(1 / PLACE / FIRST_SUBJECT) / PLACE - (1 - 1 / PLACE) * np.log((1 - 1 / PLACE) / FILLERS)
        whole = np.log(PLACE * FIRST_SUBJECT * SUBJECTS * FORMS) + (PLACE - 1) * np.log(FILLERS)
        self.entropy = float((whole - first) / T)  # nats for each word but the first

    def batch(self, random: np.random.Generator, n: int) -> tuple[Any, Any, dict[str, Any]]:
        """ids and targets (n, T); and of each sentence the form, the relation, the answer and the fact."""
        ids = random.integers(FIRST_FILLER, VOCAB, (n, T + 1))
        word, form = random.integers(0, FIRST_SUBJECT, n), random.integers(0, SUBJECTS * FORMS, n)
        relation, subject = word // WORDS, form // FORMS
        ids[np.arange(n), random.integers(0, PLACE, n)] = word
        ids[:, PLACE], ids[:, T] = FIRST_SUBJECT + form, FIRST_OBJECT + self.facts[relation, subject]
        known = {"word form": form, "relation": relation, "answer": ids[:, T], "fact": relation * SUBJECTS + subject}
        return ids[:, :-1], ids[:, 1:], known


def streams(model: models.GPT, ids: Any) -> tuple[dict[str, Any], float, int]:
    """The stream at the subject behind each half block; the gap of the sum that it should be; outputs of another shape."""
    with (
        tg.no_grad(),
        tg.inspect.record(model, "blocks.*") as seen,
        tg.inspect.record(model, "norm", inputs=True) as end,
    ):
        with tg.inspect.record(model, "blocks.0", inputs=True) as start:
            model(ids)
    added = sum(seen[f"{half}.f"] for half in HALVES)
    off = float(np.abs(start["blocks.0"] + added - end["norm"]).max() / np.abs(end["norm"]).max())
    shapes = sum(seen[f"blocks.{i}"].shape != start["blocks.0"].shape for i in range(4))
    return (
        dict(zip(SHORT, [s[:, PLACE] for s in (start["blocks.0"], *map(seen.get, HALVES))], strict=True)),
        off,
        shapes,
    )


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    language = Language(random)
    model = models.GPT(models.GPTConfig(VOCAB, T, 4, 4, 48))
    n = size.pick(1000, 2000, 4000)
    ids, targets, known = language.batch(random, n)

    def probes(kind: str) -> tg.inspect.Probes:
        groups = known["fact"] if kind == "answer" else None
        return tg.inspect.probe_layers(streams(model, ids)[0], known[kind], groups=groups)

    untrained = {kind: probes(kind) for kind in ("relation", "answer")}
    fit(model.parameters(), lambda: model.loss(*language.batch(random, 64)[:2]), size.pick(400, 800, 3000), 4e-3, 20)
    with tg.no_grad():
        loss = model.loss(ids, targets).item()
    at_subject = np.full_like(targets, -100)
    at_subject[:, PLACE] = targets[:, PLACE]
    lens = tg.inspect.logit_lens(model, ids, at_subject, layers=HALVES)
    means = lens.means()
    found = {kind: probes(kind) for kind in KINDS}
    read = {kind: [p.accuracy for p in found[kind].values()] for kind in KINDS}
    best = {kind: int(np.argmax(read[kind])) for kind in KINDS}
    steps = -np.diff(means["divergence"])
    _, off, shapes = streams(model, ids)
    values = {
        "loss": loss - language.entropy,
        "shapes": shapes,
        "sum": off,
        "early": means["probability"][0],
        "late": means["probability"][-1],
        "worse": max(0.0, -steps.min()),
        "one": steps.max() / means["divergence"][0],
        "form": read["word form"][0],
        "form_late": read["word form"][-1],
        "form_relation": best["relation"] - best["word form"],
        "relation": max(read["relation"]),
        "relation_answer": best["answer"] - best["relation"],
        "answer": max(read["answer"]),
        "shuffled": max(p.control for p in found["relation"].values()),
        "untrained": max(p.accuracy for p in untrained["answer"].values()),
        "input": read["answer"][0],
        "no_relation": read["relation"][0],
        "relation_late": read["relation"][-1],
        "untrained_relation": max(p.accuracy for p in untrained["relation"].values()),
    }
    return Result(values, {"means": means, "read": read})


def draw(figure: Any, results: list[Result]) -> None:
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 1.3])
    colours = {"word form": "tab:gray", "relation": "tab:orange", "answer": "tab:blue"}
    for i, r in enumerate(results):
        left.plot(r.data["means"]["probability"], "o-", color="tab:blue")
        middle.plot(r.data["means"]["divergence"], "o-", color="tab:purple")
        for kind, marker in zip(KINDS, "s^o", strict=True):
            right.plot(r.data["read"][kind], f"{marker}-", color=colours[kind], label=None if i else kind)
    left.set(title="logit lens: probability\nof the right object", ylim=(-0.03, 1.05))
    middle.set(title="logit lens: KL to the final\nprediction (nats)", ylim=(0, None))
    right.set(title="linear probes at the subject:\nright, held out", ylim=(-0.03, 1.05))
    right.legend(loc="lower right")
    for axes in (left, middle, right):
        axes.set_xticks(range(len(SHORT)), SHORT, rotation=40, ha="right", fontsize=10)
        axes.grid(True, alpha=0.3)


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    1,
    (
        Check("loss", "loss above the language's entropy (nats)", at_most=0.05),
        Check("shapes", "outputs of blocks that change the shape", at_most=0),
        Check("sum", "embedding + all that is added, against the final stream", at_most=1e-5),
        Check("early", "lens: probability of the object, input", at_most=0.3),
        Check("late", "lens: probability of the object, last layer", at_least=0.95),
        Check("worse", "lens: largest step back of a half block (nats)", at_most=0.1),
        Check("one", "lens: share of the way done by one half block", at_most=0.8),
        Check("form", "probe: word form in the input", at_least=0.95),
        Check("form_late", "probe: word form in the last layer", at_least=0.5),
        Check("form_relation", "half blocks from the best reading of the form to the relation's", at_least=1),
        Check("relation", "probe: relation, best layer", at_least=0.9),
        Check("relation_answer", "half blocks from the best reading of the relation to the answer's", at_least=1),
        Check("answer", "probe: answer, best layer", at_least=0.7),
        Check("shuffled", "probe for shuffled relations, best layer", at_most=0.35, control=True),
        Check("untrained", "probe for the answer, untrained, best layer", at_most=0.5, control=True),
        Check("input", "probe for the answer in the input", at_most=0.5, control=True),
        Check("no_relation", "probe for the relation in the input", at_most=0.4, control=True),
    ),
    run,
    draw,
    {
        "relation_late": "probe: relation in the last layer",
        "untrained_relation": "probe for the relation, untrained, best layer",
    },
    size=(15, 4.6),
)
