"""Without positions attention does not know the order of the words (位置编码, positional encoding)

Claim. Without positions and mask, attention is permutation-equivariant (置换等变): 医生治疗患者 (the doctor treats the patient) and 患者治疗医生
give the same set of outputs. A causal mask (因果掩码) alone already breaks the symmetry. With rotary positions (旋转位置编码) the scores depend
on the distance only.

Expected. Permuting the input of two blocks permutes the output, to 1e-12, so the two sentences give the same outputs per word, to
1e-12. With a causal mask, or with learned, sinusoidal or rotary positions, some word's output differs by at least 0.001; with
ALiBi and no mask, which knows distances but not directions, it does not, to 1e-12: one sentence is the other's mirror image. Shifting queries and
keys by 100 places changes rotary scores by at most 1e-10. On a task that only order solves (which of two words came first; chance
0.5) two blocks without positions and mask are right at most 0.6 of the time; with learned, sinusoidal, rotary or ALiBi positions,
and with the causal mask alone, at least 0.95.

Control. On a task without order (whether a certain word occurs) the blocks without positions are right at least 0.95 of the time.
Learned positions, added to the input, do change their scores under the shift, by at least 0.01.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, accuracy, fit, gap, normal

WORDS, T, D, HEADS = 8, 6, 32, 4
KINDS = ("none", "causal mask only", "learned", "sinusoidal", "rotary", "alibi")


class Reader(nn.Module):
    """Two blocks; the answer is read at the last place, which always holds a question mark."""

    def __init__(self, kind: str):
        super().__init__()
        self.embedding = nn.Embedding(WORDS + 1, D)
        tables = {"learned": nn.LearnedPosition, "sinusoidal": nn.SinusoidalPosition}
        self.position = tables[kind](256, D) if kind in tables else None
        in_heads = kind if kind in ("rotary", "alibi") else None
        causal = kind == "causal mask only"
        self.blocks = nn.Sequential(
            *[nn.TransformerBlock(D, HEADS, causal=causal, position=in_heads) for _ in range(2)]
        )
        self.norm, self.read = nn.LayerNorm(D), nn.Linear(D, 2)

    def stream(self, ids: Any) -> tg.Tensor:
        x = self.embedding(tg.tensor(ids))
        return self.blocks(x if self.position is None else x + self.position(x))  # type: ignore[no-any-return]

    def forward(self, ids: Any) -> tg.Tensor:
        return self.read(self.norm(self.stream(ids))[:, -1])  # type: ignore[no-any-return]


def which_first(random: np.random.Generator, n: int) -> tuple[Any, Any]:
    """Words 0 and 1 once each among others: whether 0 comes first."""
    ids = random.integers(2, WORDS, (n, T + 1))
    ids[:, T] = WORDS
    places = random.permuted(np.tile(np.arange(T), (n, 1)), axis=1)[:, :2]
    ids[np.arange(n), places[:, 0]], ids[np.arange(n), places[:, 1]] = 0, 1
    return ids, (places[:, 0] < places[:, 1]).astype(np.int64)


def contains(random: np.random.Generator, n: int) -> tuple[Any, Any]:
    """Whether word 0 is among the others."""
    ids, targets = which_first(random, n)
    ids[(ids == 0) & (targets == 0)[:, None]] = 3
    return ids, targets


def trained(kind: str, random: np.random.Generator, steps: int, task: Any = which_first) -> tuple[float, list[float]]:
    model = Reader(kind)

    def loss() -> Any:
        ids, targets = task(random, 32)
        return F.cross_entropy(model(ids), tg.tensor(targets))

    losses = fit(model.parameters(), loss, steps, lr=3e-3, warmup=20, until=0.02)
    ids, targets = task(random, 2000)
    with tg.no_grad():
        return accuracy(model(ids), targets), losses


def sentences(kind: str) -> float:
    """The largest difference between a word's output in 医生治疗患者 and in 患者治疗医生 (words 2, 3, 4)."""
    model = Reader(kind).double()
    with tg.no_grad():
        one, other = (model.stream(np.array([ids])).numpy()[0] for ids in ([2, 3, 4], [4, 3, 2]))
    return gap(other[::-1], one)


def shift(random: np.random.Generator) -> tuple[float, float]:
    """How much scores change when everything moves by 100 places: rotary, and learned positions added to the input."""
    rotary, learned = nn.Rotary(8), nn.LearnedPosition(256, 8).double()
    q, k = normal(random, 1, 1, T, 8), normal(random, 1, 1, T, 8)
    turned = [rotary(q, o) @ rotary(k, o).transpose(-1, -2) for o in (0, 100)]
    nn.init.normal_(learned.weight, std=1.0)
    added = [(q[0] + learned(q[0], o)) @ (k[0] + learned(k[0], o)).transpose(-1, -2) for o in (0, 100)]
    return gap(turned[1], turned[0]), gap(added[1], added[0])


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    blind = Reader("none").double().blocks
    x, order = normal(random, 2, T, D), random.permutation(T)
    differences = {kind: sentences(kind) for kind in KINDS}
    steps = size.pick(150, 300, 1500)  # at most: it ends when the task is learned
    answers, losses = {}, {}
    for kind in KINDS if size > Size.QUICK else ("none", "causal mask only", "rotary"):
        answers[kind], losses[kind] = trained(kind, random, steps)
    rotary, learned = shift(random)
    values = {
        "equivariant": gap(blind(x[:, order]), blind(x).detach().numpy()[:, order]),
        "sentences": differences["none"],
        "broken": min(v for kind, v in differences.items() if kind not in ("none", "alibi")),
        "alibi": differences["alibi"],
        "rotary": rotary,
        "blind": answers["none"],
        "sighted": min(v for kind, v in answers.items() if kind != "none"),
        "no_order": trained("none", random, steps, contains)[0],
        "learned": learned,
    }
    return Result(values, {"answers": answers, "losses": losses})


def draw(figure: Any, results: list[Result]) -> None:
    left, right = figure.subplots(1, 2)
    kinds = list(results[0].data["answers"])
    for i, kind in enumerate(kinds):
        colour = "tab:red" if kind == "none" else f"C{i - 1}" if i < 4 else f"C{i}"
        answers = [r.data["answers"][kind] for r in results]
        left.bar(i, np.mean(answers), color=colour)
        left.plot([i] * len(answers), answers, "k.")
        smooth = np.convolve(results[0].data["losses"][kind], np.ones(15) / 15, "valid")
        right.plot(smooth, color=colour, label=kind)
    left.axhline(0.5, color="k", ls=":", lw=1)
    left.set_xticks(range(len(kinds)), [k.replace(" ", "\n") for k in kinds], fontsize=10)
    left.set(title="which came first? right answers", ylim=(0, 1.05))
    right.set(title="loss in training, first seed", xlabel="step")
    right.legend(fontsize=10)


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    14,
    (
        Check("equivariant", "two blocks without positions: permuting, change", at_most=1e-12),
        Check("sentences", "a word's output in the two sentences, no positions: change", at_most=1e-12),
        Check("broken", "the same with the mask or three kinds of position, the smallest", at_least=0.001),
        Check("alibi", "the same with ALiBi and no mask", at_most=1e-12),
        Check("rotary", "rotary scores, all shifted by 100: change", at_most=1e-10),
        Check("blind", "right answers without positions and mask", at_most=0.6),
        Check("sighted", "right answers with mask or positions, the lowest", at_least=0.95),
        Check("no_order", "right answers without positions, task without order", at_least=0.95, control=True),
        Check("learned", "scores with learned positions, all shifted by 100: change", at_least=0.01, control=True),
    ),
    run,
    draw,
    size=(12, 4.5),
)
