"""Batches: windows, the state of the stream, and evaluation that leaves it alone."""

import json
from typing import Any

import numpy as np
import pytest

from tinygrad_tf.data import (
    Batches,
    ByteBPETokenizer,
    CharTokenizer,
    DataError,
    Tokenizer,
    eval_batches,
    sentence_starts,
    sentence_windows,
    toy_world,
)


def test_windows_and_targets() -> None:
    tokens = np.random.default_rng(0).integers(0, 50, 200)
    batches = Batches(tokens, 16, 5, seed=3)
    for _ in range(20):
        x, y = batches.next()
        assert x.shape == y.shape == (5, 16) and x.dtype == y.dtype == np.int64
        for row in range(5):
            window = np.append(x[row], y[row, -1])
            assert (x[row, 1:] == y[row, :-1]).all()
            assert any((tokens[i : i + 17] == window).all() for i in range(200 - 16))


def test_every_window_can_come_and_no_other() -> None:
    batches = Batches(np.arange(20), 8, 64, seed=0)
    starts = np.concatenate([batches.next()[0][:, 0] for _ in range(20)])
    assert set(starts.tolist()) == set(range(12))
    assert Batches(np.arange(9), 8, 2, seed=0).next()[1].tolist() == [list(range(1, 9))] * 2


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64, np.uint8])
def test_any_integer_dtype_and_read_only_maps(dtype: Any, tmp_path: Any) -> None:
    values = np.arange(100).astype(dtype)
    values.tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", dtype=dtype, mode="r")
    for a, b in zip(Batches(mapped, 8, 4, 1).next(), Batches(np.arange(100), 8, 4, 1).next(), strict=True):
        assert a.dtype == np.int64 and (a == b).all() and a.flags.writeable


@pytest.mark.parametrize("starts", [None, np.arange(0, 300, 7)])
def test_bc37_a_resumed_stream_goes_on(starts: Any) -> None:
    """BC-37: a resumed stream goes on."""
    tokens = np.arange(300)
    straight = Batches(tokens, 8, 3, seed=5, starts=starts)
    expected = [straight.next()[0] for _ in range(20)]
    assert not all((expected[0] == x).all() for x in expected[1:])
    first = Batches(tokens, 8, 3, seed=5, starts=starts)
    for _ in range(7):
        first.next()
    state = json.loads(json.dumps(first.state_dict()))
    resumed = Batches(tokens, 8, 3, seed=99, starts=starts)
    resumed.load_state_dict(state)
    for x in expected[7:]:
        assert (resumed.next()[0] == x).all()
    assert (first.next()[0] == expected[7]).all()  # taking the state has moved nothing


def test_bc37_evaluation_and_global_generators_do_not_disturb_training() -> None:
    """BC-37: evaluation and global generators do not disturb training."""
    tokens = np.arange(300)
    a, b = Batches(tokens, 8, 3, seed=5), Batches(tokens, 8, 3, seed=5)
    for _ in range(5):
        np.random.seed(0)
        eval_batches(tokens, 8, 3, 4)
        sentence_windows(tokens % 7, 299 % 7, 8, 3)
        assert (a.next()[0] == b.next()[0]).all()


def test_bc37_another_stream_s_state_is_refused() -> None:
    """BC-37: another stream's state is refused."""
    state = Batches(np.arange(100), 8, 3, seed=0).state_dict()
    for other in (Batches(np.arange(100), 8, 4), Batches(np.arange(100), 9, 3), Batches(np.arange(101), 8, 3)):
        with pytest.raises(ValueError, match="the saved stream has"):
            other.load_state_dict(state)


def test_starts() -> None:
    tokens = np.array([5, 0, 6, 7, 0, 8, 0, 9, 9, 0])
    starts = sentence_starts(tokens, newline=0)
    assert starts.tolist() == [1, 4, 6, 9] and starts.dtype == np.int64
    drawn = np.concatenate([Batches(tokens, 3, 8, seed, starts).next()[0] for seed in range(9)])
    assert {tuple(row) for row in drawn.tolist()} == {(0, 6, 7), (0, 8, 0), (0, 9, 9)}
    with pytest.raises(DataError, match="no window of block_size 3"):
        Batches(tokens, 3, 1, 0, starts=[9])


def test_evaluation_windows_are_spread_and_fixed() -> None:
    tokens = np.arange(1000)
    once, again = eval_batches(tokens, 10, 4, 3), eval_batches(tokens, 10, 4, 3)
    assert all((a[0] == b[0]).all() and (a[1] == b[1]).all() for a, b in zip(once, again, strict=True))
    starts = np.concatenate([x[:, 0] for x, _ in once])
    assert starts[0] == 0 and starts[-1] == 989 and len(starts) == 12
    assert np.ptp(np.diff(starts)) <= 1
    # Fewer starts than asked for: each once.
    few = eval_batches(np.arange(13), 10, 2, 50)
    assert [x[:, 0].tolist() for x, _ in few] == [[0, 1], [2]]
    at = eval_batches(tokens, 10, 2, 1, starts=[3, 500, 990])
    assert at[0][0][:, 0].tolist() == [3, 500]


def test_wrong_arguments() -> None:
    with pytest.raises(DataError, match="8 tokens, but block_size 8"):
        Batches(np.arange(8), 8, 1)
    with pytest.raises(DataError, match="8 tokens, but block_size 8"):
        eval_batches(np.arange(8), 8, 1, 1)
    with pytest.raises(ValueError, match="at least 1"):
        Batches(np.arange(8), 4, 0)
    with pytest.raises(ValueError, match="at least 1"):
        eval_batches(np.arange(8), 4, 1, 0)
    for tokens in (np.arange(8.0), np.zeros((2, 9), dtype=int)):
        with pytest.raises(ValueError, match="tokens must be integers of shape"):
            Batches(tokens, 4, 1)


@pytest.mark.parametrize("kind", ["char", "bpe"])
@pytest.mark.parametrize("block_size", [48, 64, 100])
def test_sentence_windows_score_every_token_once_with_its_whole_line(kind: str, block_size: int) -> None:
    corpus = toy_world(0, 5000, 5000)
    text = corpus.train + corpus.val
    tokenizer: Tokenizer = CharTokenizer.train(text) if kind == "char" else ByteBPETokenizer.train(text, 300)
    (newline,) = tokenizer.encode("\n")
    if kind == "bpe":
        block_size *= 2
    tokens = tokenizer.encode_array(corpus.val)
    windows = sentence_windows(tokens, newline, block_size, batch_size=7)
    assert all(x.shape == y.shape == (7, block_size) for x, y in windows[:-1])
    scored = np.concatenate([row[row != -100] for _, y in windows for row in y])
    assert (scored == tokens).all()
    for x, y in windows:
        for xs, ys in zip(x, y, strict=True):
            n = int((ys != -100).sum())
            assert (ys[n:] == -100).all() and (xs[n:] == newline).all()
            assert xs[0] == newline and (xs[1:n] == ys[: n - 1]).all() and ys[n - 1] == newline
    rows = sum(len(y) for _, y in windows)
    assert rows <= 2 * len(tokens) / block_size + 1  # lines share windows


def test_sentence_windows_want_whole_lines_that_fit() -> None:
    assert sentence_windows([1, 2, 0], 0, 3, 1)[0][1].tolist() == [[1, 2, 0]]
    assert sentence_windows([1, 0, 1, 2, 0], 0, 3, 4)[0][1].tolist() == [[1, 0, -100], [1, 2, 0]]
    with pytest.raises(DataError, match="a line of 3 tokens does not fit block_size 2"):
        sentence_windows([1, 0, 1, 2, 0], 0, 2, 1)
    for tokens in ([], [1], [1, 0, 2]):
        with pytest.raises(DataError, match="each of which ends with a newline"):
            sentence_windows(np.array(tokens, dtype=int), 0, 4, 1)
