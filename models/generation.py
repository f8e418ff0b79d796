"""Generation: choosing the next token from logits, and continuing a text token by token with a cache."""

from __future__ import annotations

import contextlib
import math
import operator
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

import tinygrad_tf as tg
from tinygrad_tf.ops.embedding import all_below

from .. import modes
from ..modes import check, converted
from ..nn.attention import KVCache
from ..nn.module import eval_mode

Ids = NDArray[np.int64]
Probabilities = NDArray[np.float64]

#: Temperatures below this are the limit 0: the likeliest token, the lowest id of equals.
GREEDY_BELOW = 1e-6

#: From so many tokens on, of one generation or several, the three steps that a capture begins with (two of them longer)
#: are made up for.
WORTH_CAPTURING = 24


class LanguageModel(Protocol):
    """What generation needs of a model, which is also a Module."""

    @property
    def block_size(self) -> int:
        """How many tokens it can read at once."""

    @property
    def vocab_size(self) -> int:
        """How many token ids there are."""

    def next_logits(self, ids: Any, cache: KVCache | None = None) -> tg.Tensor:
        """Logits (B, vocab_size) of the token after ids."""

    def new_cache(self) -> KVCache:
        """An empty cache."""


def _check_choice(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature must be a finite number of at least 0, got {temperature}")
    if top_k is not None and (isinstance(top_k, bool) or int(top_k) != top_k or top_k < 1):
        raise ValueError(f"top_k must be an integer of at least 1 or None, got {top_k}")
    if top_p is not None and not 0.0 <= top_p <= 1.0:
        raise ValueError(f"top_p must be in [0, 1] or None, got {top_p}")


def _scores(logits: Any) -> NDArray[Any]:
    """The logits as an array (V,) or (B, V) of which every row has a token that may come, and no NaN."""
    scores = logits._data if isinstance(logits, tg.Tensor) else np.asarray(logits, dtype=np.float64)
    if scores.ndim not in (1, 2) or scores.shape[-1] == 0:
        raise ValueError(f"logits must be (V,) or (B, V) with V at least 1, got shape {scores.shape}")
    for peak in np.atleast_1d(scores.max(-1)).tolist():  # NaN if there is one
        if peak != peak:
            raise ValueError("logits hold NaN: the model's weights or its input are broken")
        if peak == -math.inf:
            raise ValueError("logits are all -inf: no token may come next")
    return scores


def next_probabilities(
    logits: Any, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Probabilities:
    """The distribution that the next token is drawn from: softmax(logits / temperature), cut to top_k, then to top_p.

    Args:
        logits: (V,) or (B, V), a Tensor or array; −inf is a token that may not come.
        temperature: 0, or below 1e-6, puts everything on the likeliest token, of equals the one with the lowest id.
        top_k: keep the k likeliest; ties go to the lowest id (default None: all).
        top_p: keep a token if the likelier ones weigh less than p: the one that crosses p stays, and at least one
            (default None: all).

    Returns: float64 probabilities in the shape of logits; those kept sum to 1.

    Raises:
        ValueError: an argument out of range, NaN in the logits, or no token that may come.

    Source: top-p (nucleus): Holtzman et al. 2020, section 3.1.

    >>> from tinygrad_tf import models
    >>> import numpy as np
    >>> models.next_probabilities(np.log([0.09, 0.5, 0.41]), top_p=0.9).round(3)
    array([0.   , 0.549, 0.451])
    """
    _check_choice(temperature, top_k, top_p)
    scores = _scores(logits).astype(np.float64)
    peak = scores.max(-1, keepdims=True)
    if temperature < GREEDY_BELOW:
        probabilities = np.zeros_like(scores)
        np.put_along_axis(probabilities, scores.argmax(-1, keepdims=True), 1.0, -1)
        return probabilities
    infinite = peak == np.inf
    scores = np.where(infinite, np.where(scores == np.inf, 0.0, -np.inf), scores - np.where(infinite, 0.0, peak))
    order = np.argsort(-scores, axis=-1, kind="stable")  # of equals, the lowest id first
    with np.errstate(over="ignore", under="ignore"):
        ranked = np.exp(np.take_along_axis(scores, order, -1) / float(temperature))
    if top_k is not None:
        ranked[..., int(top_k) :] = 0.0
    ranked /= ranked.sum(-1, keepdims=True)
    if top_p is not None and top_p < 1.0:
        before = np.cumsum(ranked, -1) - ranked
        keep = before < top_p
        keep[..., 0] = True
        ranked = np.where(keep, ranked, 0.0)
        ranked /= ranked.sum(-1, keepdims=True)
    probabilities = np.empty_like(ranked)
    np.put_along_axis(probabilities, order, ranked, -1)
    return probabilities


def sample_next(
    logits: Any,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    rng: np.random.Generator | None = None,
) -> Ids:
    """Draw a token id for each row of logits from `next_probabilities`.

    Args:
        logits, temperature, top_k, top_p: see next_probabilities.
        rng: a numpy Generator (default: one seeded from `tg.manual_seed`'s stream).

    Returns: int64 ids, (B,) for logits (B, V), () for (V,).

    >>> from tinygrad_tf import models
    >>> int(models.sample_next([1.0, 3.0, 2.0], temperature=0))
    1
    """
    if temperature < GREEDY_BELOW:
        _check_choice(temperature, top_k, top_p)
        return np.asarray(_scores(logits).argmax(-1), dtype=np.int64)
    probabilities = next_probabilities(logits, temperature, top_k, top_p)
    rng = _generator(None) if rng is None else rng
    rows = np.atleast_2d(probabilities)
    totals = np.cumsum(rows, -1)
    draws = rng.random(len(rows)) * totals[:, -1]
    ids = np.array(
        [
            min(int(np.searchsorted(total, draw, side="right")), int(np.flatnonzero(row)[-1]))
            for total, draw, row in zip(totals, draws, rows, strict=True)
        ],
        dtype=np.int64,
    )
    return ids.reshape(probabilities.shape[:-1])


def _generator(seed: int | None) -> np.random.Generator:
    if seed is None:
        seed = int(tg.randint(0, 2**31, (1,)).item())
    return np.random.default_rng(seed)


def as_ids(ids: Any, limit: int, name: str) -> Ids:
    """Token ids as an int64 array, checked against the vocabulary.

    Raises:
        TypeError: they are not integers.
        ValueError: rows of unequal length.
        IndexError: one is negative or not below limit; the message names it and the limit.
    """
    if isinstance(ids, tg.Tensor):
        array = ids._data
    else:
        try:
            array = np.asarray(ids)
        except ValueError:
            raise ValueError(
                f"{name}: rows of ids must be equally long; give prompts of different lengths one by one"
            ) from None
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: ids must be integers, got dtype {array.dtype}")
    check(_below, array, limit, name)
    return converted(array, np.int64)


def _below(ids: NDArray[Any], limit: int, name: str) -> None:
    if not all_below(ids, limit):
        wrong = ids[(ids < 0) | (ids >= limit)].flat[0]
        raise IndexError(f"{name}: id {wrong} is out of range, ids must be at least 0 and below {limit}")


class _Reader:
    """Logits (B, V) after a context (B, T), of which a cache may hold the beginning.

    A model that says that it `captures` is captured, once so many tokens are worth it. The model keeps its last reader,
    so that the next generation finds what was captured, unless that takes more memory than the model's own weights, or
    an attribute of any module was set since.
    """

    def __init__(self, model: Any, rows: int, use_cache: bool):
        self.settings, self.code = (rows, use_cache, modes.changes[0]), _code(type(model))
        self.cache = cache = model.new_cache() if use_cache else None
        self.tokens = 0
        self.captures = getattr(model, "captures", False)
        self.model = itself = cast(Callable[[], Any], weakref.ref(model))  # the model holds the reader
        self.read_on = lambda ids: itself().next_logits(ids, cache)
        self.read = lambda ids: itself().next_logits(ids)
        self.captured = [tg.capture(function, warn=False) for function in (self.read_on, self.read)]

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of the model begins with none

    def fits(self, model: Any, rows: int, use_cache: bool) -> bool:
        """Whether it is this model's, which is as it was when the reader was made."""
        code = _code(type(model))
        return (
            self.model() is model
            and self.settings == (rows, use_cache, modes.changes[0])
            and len(code) == len(self.code)
            and all(map(operator.is_, code, self.code))
        )

    def __call__(self, context: Ids) -> NDArray[Any]:
        block_size = self.model().block_size
        one, whole = self.captured if self.captures and self.tokens >= WORTH_CAPTURING else (self.read_on, self.read)
        if self.cache is None or context.shape[1] > block_size:
            # where the window has moved, every position in it is another one, so it is read again
            window = context[:, -block_size:]
            return (whole if window.shape[1] == block_size else self.read)(window)._data  # type: ignore[no-any-return]
        new = context[:, self.cache.length :]
        return (one if new.shape[1] == 1 else self.read_on)(new)._data  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the cache and the results of what was captured take."""
        return sum(c.nbytes for c in self.captured) + (0 if self.cache is None else self.cache.nbytes)


def _code(model: type) -> list[Any]:
    """All that a class defines, or inherits."""
    return [value for parent in model.__mro__ for value in vars(parent).values()]


@contextlib.contextmanager
def _reading(model: Any, rows: int, use_cache: bool, tokens: int) -> Iterator[_Reader]:
    """The reader that the model has kept, if it fits, or a new one; it will read that many tokens.

    It is kept for a model whose own class says that it `captures`: one that inherits may use what no capture sees.
    """
    reader = model.__dict__.pop("_reader", None)
    if reader is None or not reader.fits(model, rows, use_cache):
        reader = _Reader(model, rows, use_cache)
    elif reader.cache is not None:
        reader.cache.reset()
    reader.tokens += tokens
    try:
        yield reader
    finally:
        if vars(type(model)).get("captures") and reader.nbytes <= sum(p._data.nbytes for p in model.parameters()):
            model.__dict__["_reader"] = reader


def generate_stream(
    model: LanguageModel,
    ids: Any,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    eos: int | None = None,
    use_cache: bool = True,
) -> Iterator[Ids]:
    """As `generate`, but gives each new token of every row, (B,), as soon as it is drawn.

    Arguments are checked when it is called. Between two tokens the model is in the mode its user left it in, and
    gradients are recorded as the user set it.
    """
    steps = _steps(model, *_checked(model, ids, max_new_tokens, temperature, top_k, top_p, seed, eos), use_cache)
    return _in_turns(model, steps)


def _in_turns(model: LanguageModel, steps: Iterator[Ids]) -> Iterator[Ids]:
    """The steps, with the model in evaluation mode and nothing recorded during each, and as it was between them."""
    while True:
        with eval_mode(model), tg.no_grad():  # type: ignore[arg-type]
            new = next(steps, None)
        if new is None:
            return
        yield new


def _checked(
    model: LanguageModel,
    ids: Any,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    eos: int | None,
) -> tuple[Ids, int, tuple[float, int | None, float | None], np.random.Generator, int | None]:
    """What `_steps` needs of these arguments of `generate`; raises if there is something wrong with them."""
    _check_choice(temperature, top_k, top_p)
    if isinstance(max_new_tokens, bool) or int(max_new_tokens) != max_new_tokens or max_new_tokens < 0:
        raise ValueError(f"generate: max_new_tokens must be an integer of at least 0, got {max_new_tokens}")
    if eos is not None and not 0 <= eos < model.vocab_size:
        raise IndexError(f"generate: eos {eos} is out of range, ids must be at least 0 and below {model.vocab_size}")
    prompt = np.atleast_2d(as_ids(ids, model.vocab_size, "generate"))
    if prompt.ndim != 2 or prompt.shape[1] == 0:
        raise ValueError(f"generate: ids must be (T,) or (B, T) with T at least 1, got shape {prompt.shape}")
    rng = _generator(seed) if temperature >= GREEDY_BELOW else np.random.default_rng(0)
    return prompt, int(max_new_tokens), (temperature, top_k, top_p), rng, eos


def _steps(
    model: LanguageModel,
    prompt: Ids,
    max_new_tokens: int,
    choice: tuple[float, int | None, float | None],
    rng: np.random.Generator,
    eos: int | None,
    use_cache: bool,
) -> Iterator[Ids]:
    batch, length = prompt.shape
    context = np.zeros((batch, length + max_new_tokens), dtype=np.int64)
    context[:, :length] = prompt
    done = np.zeros(batch, dtype=bool)
    with _reading(model, batch, use_cache, max_new_tokens) as logits:
        for end in range(length, length + max_new_tokens):
            new = sample_next(logits(context[:, :end]), *choice, rng)
            if eos is not None:
                new[done] = eos
                done |= new == eos
            context[:, end] = new
            yield new
            if eos is not None and done.all():
                return


def generate(
    model: LanguageModel,
    ids: Any,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    eos: int | None = None,
    use_cache: bool = True,
) -> tg.Tensor:
    """Continue every row of ids by up to max_new_tokens tokens, drawn from `next_probabilities`.

    The model is in evaluation mode and records nothing meanwhile, and is afterwards as it was. When the text is longer
    than the model can read, it reads the last block_size tokens again for every token.

    Args:
        ids: the prompt, (T,) or (B, T): a Tensor, array or nested list of equally long rows.
        max_new_tokens: how many tokens to add.
        temperature, top_k, top_p: see next_probabilities.
        seed: of the draws (default None: taken from `tg.manual_seed`'s stream).
        eos: an id at which a row ends: it is filled up with eos, and generation stops when all rows have ended.
        use_cache: keep keys and values, rather than read the text again for every token (default True).

    Returns: the prompt and what follows, int64 (T + n,) or (B, T + n).

    Raises:
        ValueError: an empty prompt, rows of unequal length, or an argument out of range.
        IndexError: an id that the model does not have; the message names it and the limit.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import models
    >>> gpt = models.GPT(models.GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8))
    >>> models.generate(gpt, [1, 2, 3], 5, seed=0).shape
    (8,)
    """
    checked = _checked(model, ids, max_new_tokens, temperature, top_k, top_p, seed, eos)
    with eval_mode(model), tg.no_grad():  # type: ignore[arg-type]
        new = list(_steps(model, *checked, use_cache))
    whole = np.concatenate([checked[0], *(n[:, None] for n in new)], axis=1)
    return tg.tensor(whole if np.ndim(getattr(ids, "_data", ids)) == 2 else whole[0])
