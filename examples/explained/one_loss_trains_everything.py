"""One loss trains every part, and it can turn attention from the wrong word to the right one (端到端训练, end-to-end)

Claim. Nobody tells attention (注意力) where to look, the FFN (前馈网络) what to store, or the embedding (词嵌入) what to mean: one loss (损失) at the end,
and its gradient (梯度) reaches every parameter of every part in one backward pass (反向传播). Where 它 (it) looked at the wrong word, 苹果 (Apple) and not
手机 (the phone), the gradients of W_Q and W_K alone put it right.

Expected. After one backward pass 0 parameters of a block, its embeddings and its head have no gradient or a gradient of 0; a single piece
has none by theory, the bias of the keys, which softmax does not see: at most 1e-12 of the largest. Trained together the parts answer 它, 谁 (who)
and 这 (this) at least 0.95 right. Frozen (冻结) in turn, none is indispensable: the others learn round it, at least 0.8 right. Taught that 它
means the company if there is one, the model looks there: weight on 手机 at most 0.2. Now 它 is to mean the product, and W_Q and W_K alone are
trained: a first small step raises the weight on 手机 in at least 0.8 of the sentences; in the end it is at least 0.8, and at least 0.95 of
the answers are right, at most 0.1 before.

Control. With all parts but the head frozen at most 0.85 are right: what lies in front of it must learn. Trained as long
on the old answers, W_Q and W_K leave the weight on 手机 at most at 0.2. With all parts frozen nothing changes: a difference of 0.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, accuracy, fit

COMPANY, PRODUCT, FILLERS, IT, WHO, THIS, T, D = range(4), range(4, 8), range(8, 16), 16, 17, 18, 6, 32
PARTS = ("embedding", "positions", "W_Q, W_K", "W_V, W_O", "FFN", "norms", "head")
LAYER = "block.attention.f"


class Reader(nn.Module):
    """One block with one head; the answer (a part of one of 4 companies or 4 products) is read at the pronoun."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(19, D), nn.LearnedPosition(T, D)
        self.block = nn.TransformerBlock(D, 1)
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 8)

    def forward(self, ids: Any) -> tg.Tensor:
        x = self.embedding(tg.tensor(ids))
        return self.head(self.norm(self.block(x + self.positions(x)))[:, -1])  # type: ignore[no-any-return]


def sentences(
    random: np.random.Generator, n: int, pronouns: Any, single: float = 0.0, it_is_product: bool = False
) -> tuple[Any, Any, Any]:
    """A company and a product at random places among fillers, then a pronoun; the answers; the places of the products.

    A share `single` of them has only one of the two, which any pronoun then means.
    """
    ids, rows = random.choice(FILLERS, (n, T)), np.arange(n)
    places = random.permuted(np.tile(np.arange(T - 1), (n, 1)), axis=1)[:, :2]
    ids[rows, places[:, 0]], ids[rows, places[:, 1]] = random.choice(COMPANY, n), random.choice(PRODUCT, n)
    ids[:, -1] = random.choice(pronouns, n)
    product = (ids[:, -1] == THIS) | ((ids[:, -1] == IT) & it_is_product)
    one = random.random(n) < single
    product = np.where(one, random.random(n) < 0.5, product).astype(int)
    answers = ids[rows, places[rows, product]]
    ids[rows[one], places[rows, 1 - product][one]] = random.choice(FILLERS, int(one.sum()))
    return ids, answers, places[:, 1]


def part_of(name: str) -> str:
    if "out_proj" in name:
        return "W_V, W_O"
    if "norm" in name:
        return "norms"
    return next((p for p in PARTS if name.startswith(p)), "FFN")


def masks(model: Reader, trained: Any) -> dict[str, Any]:
    """1 where a parameter belongs to a part that is trained, else 0, by name."""
    found = {}
    for name, p in model.named_parameters():
        found[name] = np.full(p.shape, float(part_of(name) in trained), dtype="f")
        if "in_proj" in name:  # q, k and v in one
            found[name][: 2 * D], found[name][2 * D :] = "W_Q, W_K" in trained, "W_V, W_O" in trained
    return found


@contextlib.contextmanager
def only(model: Reader, trained: Any) -> Iterator[None]:
    """Inside, the gradient of everything else is 0."""
    keep = {name: tg.tensor(mask) for name, mask in masks(model, trained).items()}
    handles = [p.register_hook(lambda g, name=name: g * keep[name]) for name, p in model.named_parameters()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def learn(model: Reader, random: np.random.Generator, steps: int, trained: Any = PARTS, **task: Any) -> list[float]:
    task = task or {"single": 0.5}

    def loss() -> Any:
        ids, answers, _ = sentences(random, 64, (IT, WHO, THIS), **task)
        return F.cross_entropy(model(ids), tg.tensor(answers))

    with only(model, trained):
        return fit(model.parameters(), loss, steps, lr=5e-3, warmup=min(20, steps // 2))


def looks(model: Reader, test: tuple[Any, Any, Any]) -> tuple[Any, float]:
    """The weight on the product, sentence by sentence; the share of right answers."""
    ids, answers, products = test
    with tg.no_grad(), tg.inspect.attention_maps(model) as maps:
        right = accuracy(model(ids), answers)
    return maps.weight(LAYER, -1, products)[:, 0], right


def gradients(random: np.random.Generator) -> tuple[int, float, dict[str, float]]:
    """Parameters without gradient after one backward; the keys' bias against the largest; the size of each part's."""
    model = Reader().double()
    ids, answers, _ = sentences(random, 256, (IT, WHO, THIS))
    F.cross_entropy(model(ids), tg.tensor(answers)).backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    without = sum(g is None or not g.numpy().any() for g in grads.values())
    bias = np.abs(grads[f"{LAYER}.in_proj.bias"].numpy())
    sizes = dict.fromkeys(PARTS, 0.0)
    for part in PARTS:
        for name, mask in masks(model, (part,)).items():
            sizes[part] += float(((grads[name].numpy() * mask) ** 2).sum())
    return without, float(bias[D : 2 * D].max() / bias.max()), {part: s**0.5 for part, s in sizes.items()}


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    without, bias, sizes = gradients(random)
    steps = size.pick(200, 240, 1000)
    model = Reader()
    start = {name: p.numpy().copy() for name, p in model.state_dict().items()}
    test = sentences(np.random.default_rng(seed + 1), 1000, (IT, WHO, THIS))

    def trained(parts: Any) -> float:
        """Right answers after training some parts from the same start on the same sentences."""
        model.load_state_dict(start)
        learn(model, np.random.default_rng(seed + 2), steps, parts)
        return looks(model, test)[1]

    chosen = ("W_Q, W_K",) if size is Size.QUICK else PARTS
    frozen = {part: trained([p for p in PARTS if p != part]) for part in chosen}
    head = trained(("head",))
    trained(())
    unchanged = max(float(np.abs(p.numpy() - start[name]).max()) for name, p in model.state_dict().items())
    right = trained(PARTS)

    # 它 meant the company; now it is to mean the product.
    taught = {name: p.numpy().copy() for name, p in model.state_dict().items()}
    it = sentences(np.random.default_rng(seed + 3), 1000, (IT,), it_is_product=True)
    before = looks(model, it)
    ids, answers, _ = sentences(random, 256, (IT,), it_is_product=True)
    weight = model.block.attention.f.in_proj.weight
    (gradient,) = tg.grad(F.cross_entropy(model(ids), tg.tensor(answers)), [weight])
    with tg.no_grad():
        weight[: 2 * D] -= 0.01 * gradient[: 2 * D] / float(np.linalg.norm(gradient.numpy()))
    step = float((looks(model, it)[0] > before[0]).mean())
    model.load_state_dict(taught)
    curve = [(0, float(before[0].mean()), before[1])]
    for i in range(8):
        learn(model, random, 15, ("W_Q, W_K",), it_is_product=True)
        after = looks(model, it)
        curve.append((15 * (i + 1), float(after[0].mean()), after[1]))
    others = {p: looks(model, sentences(np.random.default_rng(seed + 4), 1000, (p,)))[1] for p in (WHO, THIS)}
    model.load_state_dict(taught)
    learn(model, random, 120, ("W_Q, W_K",), it_is_product=False)
    values = {
        "without": without,
        "bias": bias,
        "right": right,
        "frozen": min(frozen.values()),
        "wrong": curve[0][1],
        "wrong_answers": curve[0][2],
        "step": step,
        "repaired": curve[-1][1],
        "answers": curve[-1][2],
        "as_before": float(looks(model, it)[0].mean()),
        "head": head,
        "unchanged": unchanged,
        "who": others[WHO],
        "this": others[THIS],
    }
    return Result(values, {"sizes": sizes, "frozen": frozen, "curve": curve})


def draw(figure: Any, results: list[Result]) -> None:
    left, middle, right = figure.subplots(1, 3)
    places = np.arange(len(PARTS))
    for i, r in enumerate(results):
        left.plot(list(r.data["sizes"].values()), places, "o", color="tab:purple")
        rows = [PARTS.index(part) for part in r.data["frozen"]]
        middle.plot(
            list(r.data["frozen"].values()), rows, "o", color="tab:orange", label=None if i else "this part frozen"
        )
        middle.axvline(r.values["right"], color="tab:blue", lw=1.5, label=None if i else "nothing frozen")
        middle.axvline(r.values["head"], color="tab:gray", lw=1.5, ls="--", label=None if i else "all but the head")
        steps, weights, answers = zip(*r.data["curve"], strict=True)
        right.plot(steps, weights, "o-", color="tab:blue", label=None if i else "weight on the phone")
        right.plot(steps, answers, "s--", color="tab:gray", label=None if i else "right answers")
    for axes in (left, middle):
        axes.set_yticks(places, PARTS)
        axes.invert_yaxis()
        axes.grid(True, axis="y", alpha=0.3)
    left.set(title="gradient after one backward", xlabel="norm", xlim=(0, None))
    middle.set(title="parts frozen in turn", xlabel="right answers", xlim=(0, 1.05))
    right.set(title="“it”, repaired through W_Q, W_K", xlabel="step", ylim=(-0.03, 1.05))
    middle.legend(fontsize=10, loc="center left", bbox_to_anchor=(0.0, 0.5))
    right.legend(fontsize=11, loc="lower right")


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    19,
    (
        Check("without", "parameters without a gradient", at_most=0),
        Check("bias", "gradient of the keys' bias / of the largest bias", at_most=1e-12),
        Check("right", "right answers, all parts trained", at_least=0.95),
        Check("frozen", "right answers, one part frozen, the lowest", at_least=0.8),
        Check("wrong", "weight of 它 on 手机 before the repair", at_most=0.2),
        Check("wrong_answers", "right answers before the repair", at_most=0.1),
        Check("step", "sentences in which one step raises it", at_least=0.8),
        Check("repaired", "weight of 它 on 手机 after the repair", at_least=0.8),
        Check("answers", "right answers after the repair", at_least=0.95),
        Check("head", "right answers, the head alone trained", at_most=0.85, control=True),
        Check("as_before", "weight on 手机 after as many steps, 它 = company", at_most=0.2, control=True),
        Check("unchanged", "change with all parts frozen", at_most=0, control=True),
    ),
    run,
    draw,
    {
        "who": "right answers for 谁 after the repair of 它",
        "this": "right answers for 这 after it",
    },
    size=(15, 4.4),
)
