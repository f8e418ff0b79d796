"""The FFN is a memory of keys and values; a fact is spread over several neurons (键值记忆, key-value memory)

Claim. FFN(x) = Σ_i act(key_i · x) value_i: a key (键) is a row of W1, its value (值) a column of W2. Facts (事实) are stored there: more neurons
(神经元) hold more facts, a neuron's value raises the answers of the facts that excite it, a fact can be lost with its neurons, and a wrong
fact, 巴黎 → 德国 (Paris → Germany), can be repaired by the gradient of W1 and W2 alone: 巴黎 → 法国 (France).

Expected. Of 1024 random facts, all else fixed, every doubling of d_ff from 4 to 64 stores at least 1.2 times as many. In a one-block GPT that
knows 128 facts, with d_ff = 64: the answers of the 4 facts that excite a neuron most stand on average at least at 0.6 in the order of what its
value raises (0.5 by chance). Without its 8 most important neurons a fact is lost at least 0.5 of the time, without 8 random ones at
most 0.25. It is distributed (分布式): without its single most important neuron a fact is lost at most 0.5 of the time, and with its 8 at least
0.05 of the other facts go, too. Gradient steps on W1 and W2 bring the probability of 法国 from at most 0.05 to at least 0.9, and at
least 0.75 of the other facts stay right.

Control. Without the FFN at most 0.5 of the facts are right, with all of it at least 0.95. Untrained values stand at 0.4 to 0.6. As many
steps of the same size in random directions leave 法国 at most at 0.1.
"""

from functools import partial
from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import models, nn
from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, fit

RELATIONS, SUBJECTS, OBJECTS, D_FF = 8, 16, 16, 64
FIRST_OBJECT, VOCAB = RELATIONS + SUBJECTS, RELATIONS + SUBJECTS + OBJECTS
IDS = np.stack(np.divmod(np.arange(RELATIONS * SUBJECTS), SUBJECTS), 1) + [0, RELATIONS]  # (128, 2): relation, subject
FFN, PARIS, STEP = "blocks.0.feed_forward", 0, 0.001  # which fact 巴黎 → ... is
STORED, WIDTHS, OFF = 1024, (4, 8, 16, 32, 64), (0, 1, 2, 4, 8, 16, 32, 64)


def stored(random: np.random.Generator, d_ff: int, steps: int) -> float:
    """How many of 1024 random facts (a vector, one of 16 answers) an FFN stores, between fixed inputs and a fixed head."""
    x, head = (tg.tensor(random.standard_normal((n, 16)).astype("f")) for n in (STORED, OBJECTS))
    answers = tg.tensor(random.integers(0, OBJECTS, STORED))
    ffn = nn.FeedForward(16, d_ff, "relu")
    fit(ffn.parameters(), lambda: F.cross_entropy(ffn(x) @ head.T, answers), steps, lr=1e-2)
    right = int(((ffn(x) @ head.T).detach().numpy().argmax(1) == answers.numpy()).sum())
    return right - (STORED - right) / (OBJECTS - 1)  # less those that were guessed


class Facts:
    """A one-block GPT that reads a relation and a subject, and what it should answer."""

    def __init__(self, random: np.random.Generator):
        self.answers = FIRST_OBJECT + random.permutation(np.resize(np.arange(OBJECTS), len(IDS)))
        config = models.GPTConfig(VOCAB, 2, 1, 4, 16, d_ff=D_FF, activation="relu", tie_weights=False)
        self.model = models.GPT(config)
        self.ffn = self.model.blocks[0].feed_forward.f

    def loss(self, rows: Any = slice(None)) -> Any:
        return F.cross_entropy(self.model.next_logits(IDS[rows]), tg.tensor(self.answers[rows]))

    def logits(self) -> Any:
        with tg.no_grad():
            return self.model.next_logits(IDS).numpy()

    def right(self) -> Any:
        """Which facts it knows."""
        return self.logits().argmax(1) == self.answers

    def probability(self, answer: int) -> float:
        """Of an answer to 巴黎."""
        return float(F.softmax(tg.tensor(self.logits()[PARIS]), -1).numpy()[answer])

    def neurons(self) -> tuple[Any, Any]:
        """Activations (facts, neurons), and what each neuron's value adds to the objects' logits (neurons, objects)."""
        with tg.inspect.record(self.model, f"{FFN}.f.W2", inputs=True) as seen:
            self.logits()
        view = partial(tg.inspect.neuron, self.ffn, head=self.model.lm_head, norm=self.model.norm)
        return seen[f"{FFN}.f.W2"][:, -1], np.stack([view(i).pushes[FIRST_OBJECT:] for i in range(D_FF)])

    def place_of_answers(self) -> float:
        """Where the answers of the 4 facts that excite a neuron most stand in the order of what it raises, 1 the top."""
        activations, pushes = self.neurons()
        top = np.argsort(-activations, 0)[:4].T  # (neurons, 4)
        places = pushes.argsort(1).argsort(1) / (OBJECTS - 1)
        alive = activations.max(0) > 0
        return float(np.take_along_axis(places, self.answers[top] - FIRST_OBJECT, 1)[alive].mean())


def lost(facts: Facts, random: np.random.Generator, rows: Any) -> dict[str, Any]:
    """The share of facts lost without their own k neurons, without k random ones; and of other facts, lost with them."""
    activations, pushes = facts.neurons()
    wanted = facts.answers - FIRST_OBJECT
    own, others, by_chance = (np.zeros((len(rows), len(OFF))) for _ in range(3))
    for i, fact in enumerate(rows):
        rest = np.delete(pushes, wanted[fact], 1).mean(1)
        order = np.argsort(-activations[fact] * (pushes[:, wanted[fact]] - rest))
        other = random.permutation(D_FF)
        for j, k in enumerate(OFF):
            with tg.inspect.ablate(facts.model, {FFN: order[:k]}):
                right = facts.right()
            own[i, j], others[i, j] = not right[fact], 1 - np.delete(right, fact).mean()
            with tg.inspect.ablate(facts.model, {FFN: other[:k]}):
                by_chance[i, j] = not facts.right()[fact]
    return {"own": own.mean(0), "others": others.mean(0), "by chance": by_chance.mean(0)}


def needed(shares: Any) -> int:
    """The smallest number tried with which half of the facts are lost; all, if with none."""
    return next((k for k, share in zip(OFF, shares, strict=True) if share >= 0.5), D_FF)


def repair(facts: Facts, random: np.random.Generator, right: int, wrong: int) -> dict[str, Any]:
    """Steps along the gradient of W1 and W2; then, from the same start, steps of equal size in random directions."""
    facts.answers[PARIS] = right
    weights = [facts.ffn.W1.weight, facts.ffn.W2.weight]
    start = [w.numpy().copy() for w in weights]
    curves: dict[str, Any] = {"right": [], "wrong": [], "random": []}
    sizes = []
    for _ in range(300):
        curves["right"].append(facts.probability(right))
        curves["wrong"].append(facts.probability(wrong))
        if curves["right"][-1] >= 0.9:
            break
        gradients = [g.numpy() for g in tg.grad(facts.loss([PARIS]), weights)]
        sizes.append([STEP * np.linalg.norm(g) for g in gradients])
        with tg.no_grad():
            for w, g in zip(weights, gradients, strict=True):
                w -= STEP * tg.tensor(g)
    known = facts.right()
    with tg.no_grad():
        for w, before in zip(weights, start, strict=True):
            w.copy_(tg.tensor(before))
        for step in sizes:
            curves["random"].append(facts.probability(right))
            for w, size in zip(weights, step, strict=True):
                noise = random.standard_normal(w.shape).astype("f")
                w += tg.tensor(noise * np.float32(size / np.linalg.norm(noise)))
    curves["random"].append(facts.probability(right))
    return curves | {"kept": float(np.delete(known, PARIS).mean())}


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    steps = size.pick(150, 400, 2000)
    capacity = [stored(random, d_ff, steps) for d_ff in WIDTHS]
    facts = Facts(random)
    untrained = facts.place_of_answers()
    france = int(facts.answers[PARIS])
    germany = FIRST_OBJECT + (france - FIRST_OBJECT + 1) % OBJECTS
    facts.answers[PARIS] = germany  # what it is taught
    fit(facts.model.parameters(), facts.loss, 1500, 1e-2, until=0.02)
    right = facts.right().mean()
    with tg.inspect.ablate(facts.model, {FFN: "all"}):
        without = facts.right().mean()
    shares = lost(facts, random, random.permutation(len(IDS))[: size.pick(24, 64)])
    places = facts.place_of_answers()
    fixed = repair(facts, random, france, germany)
    eight, one = OFF.index(8), OFF.index(1)
    values = {
        "capacity": min(b / a for a, b in zip(capacity, capacity[1:], strict=False)),
        "values": places,
        "own": shares["own"][eight],
        "by_chance": shares["by chance"][eight],
        "one": shares["own"][one],
        "others": shares["others"][eight],
        "wrong": fixed["right"][0],
        "repaired": fixed["right"][-1],
        "kept": fixed["kept"],
        "without": without,
        "right": right,
        "untrained": untrained,
        "random": fixed["random"][-1],
        "half": needed(shares["own"]),
        "half_random": needed(shares["by chance"]),
        "steps": len(fixed["right"]) - 1,
    }
    return Result(values, {"capacity": capacity, "lost": shares, "repair": fixed})


def draw(figure: Any, results: list[Result]) -> None:
    left, middle, right = figure.subplots(1, 3)
    for i, r in enumerate(results):
        left.plot(WIDTHS, r.data["capacity"], "o-", color="tab:blue")
        for (name, label), colour in zip(
            {
                "own": "its own neurons",
                "by chance": "random neurons",
                "others": "other facts, with its neurons",
            }.items(),
            ("tab:blue", "tab:gray", "tab:orange"),
            strict=True,
        ):
            middle.plot(range(len(OFF)), r.data["lost"][name], "o-", color=colour, ms=4, label=None if i else label)
        for name, label, colour in (
            ("right", "Paris → France", "tab:blue"),
            ("wrong", "Paris → Germany", "tab:orange"),
            ("random", "France, random steps", "tab:gray"),
        ):
            right.plot(r.data["repair"][name], ".-", color=colour, label=None if i else label)
    left.axhline(STORED, color="k", ls=":", lw=1)
    left.text(WIDTHS[0], STORED, "all", va="top", fontsize=11)
    left.set_xticks(WIDTHS[1:])
    left.set(title=f"facts stored, of {STORED}", xlabel="neurons (d_ff)", ylim=(0, None))
    middle.set_xticks(range(len(OFF)), [str(k) for k in OFF])
    middle.set(title="share of facts lost", xlabel=f"neurons switched off, of {D_FF}", ylim=(-0.03, 1.4))
    right.set(title="repair by the gradient of W1, W2", xlabel="step", ylabel="probability", ylim=(-0.03, 1.05))
    middle.set_yticks(np.linspace(0, 1, 6))
    middle.legend(fontsize=10, loc="upper left")
    right.legend(fontsize=11, loc="center right")


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    8,
    (
        Check("capacity", "facts stored, smallest gain of a doubling of d_ff", at_least=1.2),
        Check("values", "place of the answers in what a neuron raises", at_least=0.6),
        Check("own", "facts lost without their 8 neurons of 64", at_least=0.5),
        Check("by_chance", "facts lost without 8 random neurons", at_most=0.25),
        Check("one", "facts lost without their most important neuron", at_most=0.5),
        Check("others", "other facts lost with a fact's 8 neurons", at_least=0.05),
        Check("wrong", "probability of 法国 before the repair", at_most=0.05),
        Check("repaired", "probability of 法国 after it", at_least=0.9),
        Check("kept", "other facts still right after it", at_least=0.75),
        Check("without", "facts right without the FFN", at_most=0.5, control=True),
        Check("right", "facts right with it", at_least=0.95, control=True),
        Check("untrained", "place of the answers, untrained", 0.4, 0.6, control=True),
        Check("random", "probability of 法国 after random steps", at_most=0.1, control=True),
    ),
    run,
    draw,
    {
        "half": "its own neurons to switch off for half of the facts to be lost",
        "half_random": "random neurons for the same",
        "steps": "steps of the repair",
    },
    size=(14, 4.4),
)
