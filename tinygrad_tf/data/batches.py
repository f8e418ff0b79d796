"""Windows of tokens: random ones to train on, fixed ones to be judged by.

A window is x = tokens[i : i + T] with targets y = tokens[i + 1 : i + T + 1]: position t predicts the token after it.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygrad_tf.data.corpora import check_length
from tinygrad_tf.data.corpus import DataError

Ints = NDArray[np.int64]
Batch = tuple[Ints, Ints]

IGNORE = -100  # the target that cross_entropy does not score


class Batches:
    """Random windows for training, and a state that a checkpoint can hold.

    Arguments:
        tokens: ids of shape (N,), of any integer dtype; a memory-mapped array is read where it is needed.
        block_size: T, the length of a window.
        batch_size: B, how many windows make a batch.
        seed: of this stream alone: nothing else draws from it, and it draws from nothing else.
        starts: positions where a window may start, such as `sentence_starts` gives; None for everywhere.

    Raises DataError if the text is too short for a window, ValueError for wrong arguments.

    Example:
        >>> x, y = Batches(np.arange(100), block_size=8, batch_size=4, seed=0).next()
        >>> x.shape, y.shape, bool((y == x + 1).all())
        ((4, 8), (4, 8), True)
    """

    def __init__(
        self, tokens: ArrayLike, block_size: int, batch_size: int, seed: int = 0, starts: ArrayLike | None = None
    ) -> None:
        self.tokens = _ids(tokens)
        if block_size < 1 or batch_size < 1:
            raise ValueError(
                f"Batches: block_size and batch_size must be at least 1, got {block_size} and {batch_size}"
            )
        self.block_size = block_size
        self.batch_size = batch_size
        self.starts = _allowed(self.tokens, block_size, starts)
        self._n_starts = len(self.tokens) - block_size if self.starts is None else len(self.starts)
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def next(self) -> Batch:
        """The next batch: (x, y), both int64 of shape (B, T)."""
        at = self._rng.integers(0, self._n_starts, self.batch_size)
        return _windows(self.tokens, at if self.starts is None else self.starts[at], self.block_size)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is, in numbers and strings that JSON keeps exactly."""
        return {
            "generator": self._rng.bit_generator.state,
            "block_size": self.block_size,
            "batch_size": self.batch_size,
            "n_starts": self._n_starts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the stream of `state` was: the next batch is the one that would have come.

        Raises ValueError if that stream had other windows than this one.
        """
        mine = self.state_dict()
        for key in ("block_size", "batch_size", "n_starts"):
            if state[key] != mine[key]:
                raise ValueError(f"Batches: the saved stream has {key} {state[key]}, this one has {mine[key]}")
        self._rng.bit_generator.state = state["generator"]


def eval_batches(
    tokens: ArrayLike, block_size: int, batch_size: int, n_batches: int, starts: ArrayLike | None = None
) -> list[Batch]:
    """Evenly spaced windows, the same at every call and without random numbers: evaluation does not disturb training.

    Arguments are those of `Batches`; there are n_batches · batch_size windows, or as many as there are starts. Each
    batch is int64 (B, T); the last one may be smaller.

    Example:
        >>> [x[:, 0].tolist() for x, y in eval_batches(np.arange(100), 9, batch_size=2, n_batches=2)]
        [[0, 30], [60, 90]]
    """
    ids = _ids(tokens)
    if min(block_size, batch_size, n_batches) < 1:
        raise ValueError(
            f"eval_batches: block_size, batch_size and n_batches must be at least 1, "
            f"got {block_size}, {batch_size} and {n_batches}"
        )
    allowed = _allowed(ids, block_size, starts)
    available = len(ids) - block_size if allowed is None else len(allowed)
    wanted = min(n_batches * batch_size, available)
    at = np.arange(wanted) * (available - 1) // max(wanted - 1, 1)
    at = at if allowed is None else allowed[at]
    return [_windows(ids, at[i : i + batch_size], block_size) for i in range(0, wanted, batch_size)]


def sentence_starts(tokens: ArrayLike, newline: int) -> Ints:
    """The positions of the newlines: a window that starts at one predicts a sentence from its first token on.

    Arguments:
        tokens: ids of a text whose every line ends with the token `newline`.

    Example:
        >>> sentence_starts([5, 6, 0, 7, 0], newline=0).tolist()
        [2, 4]
    """
    return np.flatnonzero(_ids(tokens) == newline).astype(np.int64)


def sentence_windows(tokens: ArrayLike, newline: int, block_size: int, batch_size: int) -> list[Batch]:
    """All lines of a text, each whole, packed into windows in order: for a loss that can be held against a floor.

    Every token, newlines included, is a target exactly once, and is scored with its whole line before it. A window
    starts with a newline, as training windows do, and takes as many lines as fit; its rest has targets IGNORE (-100),
    which cross-entropy does not count. The mean over a batch counts scored tokens only: weigh it by (y != -100).sum().

    Arguments:
        tokens: ids of a text whose every line ends with the token `newline`.
        newline: the id of the newline token.
        block_size: T; a line and its newline must fit.
        batch_size: B; the last batch may be smaller.

    Raises DataError for a line that is too long, or where there is no line.

    Example:
        >>> (x, y), = sentence_windows([5, 6, 0, 7, 0, 8, 9, 0], newline=0, block_size=6, batch_size=2)
        >>> x.tolist(), y.tolist()
        ([[0, 5, 6, 0, 7, 0], [0, 8, 9, 0, 0, 0]], [[5, 6, 0, 7, 0, -100], [8, 9, 0, -100, -100, -100]])
    """
    ids = _ids(tokens).astype(np.int64)
    ends = sentence_starts(ids, newline) + 1
    if not len(ends) or ends[-1] != len(ids):
        raise DataError("sentence_windows: the text must be lines, each of which ends with a newline")
    cuts = [0]  # where windows begin: the last line end that still fits
    begin = 0
    for end in ends.tolist():
        if end - cuts[-1] > block_size:
            cuts.append(begin)
        if end - begin > block_size:
            raise DataError(f"sentence_windows: a line of {end - begin} tokens does not fit block_size {block_size}")
        begin = end
    x = np.full((len(cuts), block_size), newline, dtype=np.int64)
    y = np.full((len(cuts), block_size), IGNORE, dtype=np.int64)
    for row, (first, last) in enumerate(zip(cuts, cuts[1:] + [len(ids)], strict=True)):
        y[row, : last - first] = ids[first:last]
        x[row, 1 : last - first + 1] = ids[first : min(last, first + block_size - 1)]
    return [(x[i : i + batch_size], y[i : i + batch_size]) for i in range(0, len(cuts), batch_size)]


def _ids(tokens: ArrayLike) -> NDArray[np.integer[Any]]:
    ids = np.asarray(tokens)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"tokens must be integers of shape (N,), got {ids.dtype} of shape {ids.shape}")
    return ids


def _allowed(tokens: NDArray[np.integer[Any]], block_size: int, starts: ArrayLike | None) -> Ints | None:
    """The starts that leave room for a window and its last target."""
    check_length(tokens, block_size)
    if starts is None:
        return None
    allowed = _ids(starts).astype(np.int64)
    allowed = allowed[(allowed >= 0) & (allowed + block_size < len(tokens))]
    if not len(allowed):
        raise DataError(f"no window of block_size {block_size} fits after any of the allowed starts")
    return allowed


def _windows(tokens: NDArray[np.integer[Any]], starts: Ints, block_size: int) -> Batch:
    positions = starts[:, None] + np.arange(block_size + 1)  # (B, T + 1)
    ids = tokens[positions].astype(np.int64)
    return np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])
