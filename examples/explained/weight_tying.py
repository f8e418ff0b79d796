"""One matrix reads the tokens and writes the answer: weight tying saves parameters and still trains (权重共享)

Claim. With tied weights the head (LM head, 语言模型头) is the embedding (词嵌入) E itself. It saves vocabulary × width parameters; the gradient (梯度) of E is
the sum of its two uses; the head is trained, not static; the loss does not suffer.

Expected. The untied model has exactly vocabulary × width parameters more (difference 0). The tied gradient equals the sum of the two
gradients of an untied model with the same weights, to 1e-12, and both parts are at least 0.01 of it. In training the rows of E
move by at least 0.1 of their size through the head alone. After equal training on a random bigram language, the tied loss is at most
0.05 nats above the untied one.

Control. Either use alone does not give the tied gradient: it is off by at least 0.01. Both models have learned: the untied loss is at most
0.5 of the way from the floor (the entropy of the language) to the uniform guess.
"""

from typing import Any

import numpy as np

from tinygrad_tf import models

from .frame import Check, Experiment, Result, Size, fit, gap

VOCAB, T, D = 64, 12, 32


class Bigrams:
    """A language in which the next token depends on the current one; its entropy is known."""

    def __init__(self, random: np.random.Generator):
        scores = 1.5 * random.standard_normal((VOCAB, 8)) @ random.standard_normal((8, VOCAB)) / 8**0.5
        self.next = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        self.cumulative = self.next.cumsum(1)
        share = np.full(VOCAB, 1 / VOCAB)
        for _ in range(200):
            share = share @ self.next
        self.floor = float(-(share[:, None] * self.next * np.log(self.next)).sum())
        self.share = share

    def batch(self, random: np.random.Generator, n: int) -> tuple[Any, Any]:
        ids = np.zeros((n, T + 1), dtype=np.int64)
        ids[:, 0] = random.choice(VOCAB, n, p=self.share / self.share.sum())
        for t in range(T):
            ids[:, t + 1] = (random.random((n, 1)) > self.cumulative[ids[:, t]]).sum(1).clip(max=VOCAB - 1)
        return ids[:, :-1], ids[:, 1:]


def model(tied: bool) -> models.GPT:
    return models.GPT(models.GPTConfig(VOCAB, T, 1, 2, D, tie_weights=tied))


def gradients(language: Bigrams, random: np.random.Generator) -> list[Any]:
    """The tied gradient of E; and, of an untied model with the same weights, those of the embedding and of the head."""
    one, two = model(True).double(), model(False).double()
    weights = one.state_dict()
    two.load_state_dict({**two.state_dict(), **weights, "lm_head.weight": weights["token_embedding.weight"]})
    ids, targets = language.batch(random, 8)
    for m in (one, two):
        m.loss(ids, targets).backward()
    found = (one.token_embedding.weight, two.token_embedding.weight, two.lm_head.weight)
    return [p.grad.numpy() for p in found if p.grad is not None]


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    language = Bigrams(random)
    tied, reading, writing = gradients(language, random)
    losses, moved, n_parameters = {}, {}, {}
    for name in ("tied", "untied"):
        m = model(name == "tied")
        n_parameters[name] = m.num_parameters()
        head = m.lm_head.weight.detach().numpy().copy()
        batches = np.random.default_rng(seed + 1000)  # the same for both

        def loss(m: models.GPT = m, batches: Any = batches) -> Any:
            return m.loss(*language.batch(batches, 32))

        curve = fit(m.parameters(), loss, size.pick(120, 400, 2000), 1e-2, 20)
        test = m.loss(*language.batch(np.random.default_rng(seed + 2000), 500)).item()
        losses[name], moved[name] = (test, curve), gap(m.lm_head.weight, head)
    uniform = float(np.log(VOCAB))
    values = {
        "saved": n_parameters["untied"] - n_parameters["tied"] - VOCAB * D,
        "sum": gap(reading + writing, tied),
        "reading": float(np.abs(reading).max() / np.abs(tied).max()),
        "writing": float(np.abs(writing).max() / np.abs(tied).max()),
        "moved": moved["untied"],
        "cost": losses["tied"][0] - losses["untied"][0],
        "alone": min(gap(reading, tied), gap(writing, tied)),
        "learned": (losses["untied"][0] - language.floor) / (uniform - language.floor),
        "tied_loss": losses["tied"][0],
        "untied_loss": losses["untied"][0],
        "floor": language.floor,
    }
    rows = [np.linalg.norm(g, axis=1) for g in (reading, writing, tied)]
    return Result(values, {"curves": {k: v[1] for k, v in losses.items()}, "rows": rows, "floor": language.floor})


def draw(figure: Any, results: list[Result]) -> None:
    left, right = figure.subplots(1, 2)
    reading, writing, tied = (r[:24] for r in results[0].data["rows"])
    x = np.arange(len(tied))
    left.bar(x - 0.27, reading, 0.27, label="as embedding", color="tab:blue")
    left.bar(x, writing, 0.27, label="as head", color="tab:orange")
    left.bar(x + 0.27, tied, 0.27, label="tied: the sum", color="tab:green")
    left.set(title="gradient of E, row by row (norm)", xlabel="token", xticks=[])
    for i, r in enumerate(results):
        for name, colour in (("tied", "tab:green"), ("untied", "tab:gray")):
            smooth = np.convolve(r.data["curves"][name], np.ones(25) / 25, "valid") - r.data["floor"]
            right.plot(smooth, color=colour, lw=1.5, label=name if i == 0 else None)
    right.axhline(0, color="k", ls=":", lw=1)
    right.set(title="loss above the language's entropy (nats)", xlabel="step", ylim=(-0.05, 0.8))
    left.legend(fontsize=10)
    right.legend()


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    18,
    (
        Check("saved", "parameters saved, less vocabulary × width", 0, 0),
        Check("sum", "sum of both gradients against the tied one", at_most=1e-12),
        Check("reading", "largest gradient as embedding / tied", at_least=0.01),
        Check("writing", "largest gradient as head / tied", at_least=0.01),
        Check("moved", "change of the untied head in training, relative", at_least=0.1),
        Check("cost", "tied loss less untied loss (nats)", at_most=0.05),
        Check("alone", "one use's gradient against the tied one", at_least=0.01, control=True),
        Check("learned", "untied loss, from floor (0) to uniform (1)", at_most=0.5, control=True),
    ),
    run,
    draw,
    {"tied_loss": "loss, tied (nats)", "untied_loss": "loss, untied (nats)", "floor": "entropy of the language (nats)"},
    size=(12, 4.3),
)
