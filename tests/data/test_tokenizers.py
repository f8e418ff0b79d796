"""Tokenizers: exact round trips, streaming, special tokens, deterministic merges."""

import json
import os
import random
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tinygrad_tf.data
from tinygrad_tf.data import ByteBPETokenizer, CharTokenizer, Tokenizer, learn_merges, load_tokenizer, split_gpt2
from tinygrad_tf.data.bpe import Merger, Pair

MIXED = "I've 你好 world 🙂, the weather's fine; 今天天气真好，我想去公园。 naïve ①² 12ab_c\r\n\n  x \u00a0 हिन्दी "
ODD_TEXTS = ["", "\x00", "\r\n", "e\u0301", "\u00e9", "👩‍👩‍👧", " ", "\n\n\n", "\ufeffa\r\nb", "<|endoftext|>", MIXED]


def merged_plainly(piece: bytes, merges: list[Pair]) -> list[int]:
    """Encoding as it is defined: the lowest rank that occurs, at its leftmost place, again and again."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    ids = list(piece)
    while True:
        found = [(ranks[pair], i) for i, pair in enumerate(zip(ids, ids[1:], strict=False)) if pair in ranks]
        if not found:
            return ids
        rank, i = min(found)
        ids[i : i + 2] = [256 + rank]


def learned_plainly(pieces: list[bytes], n_merges: int) -> list[Pair]:
    """Training as it is defined: count everything anew before each merge."""
    words = [list(piece) for piece in pieces]
    merges: list[Pair] = []
    for new in range(256, 256 + n_merges):
        counts = Counter(pair for ids in words for pair in zip(ids, ids[1:], strict=False))
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        for ids in words:
            i = 0
            while i < len(ids) - 1:
                if (ids[i], ids[i + 1]) == best:
                    ids[i : i + 2] = [new]
                i += 1
    return merges


def random_pieces(seed: int, alphabet: bytes, n: int, longest: int) -> list[bytes]:
    rng = random.Random(seed)
    return [bytes(rng.choice(alphabet) for _ in range(rng.randint(0, longest))) for _ in range(n)]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a  b", ["a", " ", " b"]),
        ("   x", ["  ", " x"]),
        ("x  ", ["x", "  "]),
        ("a\n\n b", ["a", "\n\n", " b"]),
        ("x\r\ny", ["x", "\r", "\n", "y"]),
        ("I've I'VE", ["I", "'ve", " I", "'", "VE"]),
        ("12ab_c", ["12", "ab", "_", "c"]),
        ("你好 world", ["你好", " world"]),
        ("naïve ①²", ["naïve", " ①²"]),
        ("a\u00a0b", ["a", "\u00a0", "b"]),
        ("हिन्दी", ["ह", "ि", "न", "्", "द", "ी"]),
        ("", []),
    ],
)
def test_bc76_gpt2_pieces(text: str, pieces: list[str]) -> None:
    """BC-76: gpt2 pieces."""
    assert split_gpt2(text) == pieces


def test_bc76_pieces_join_back_whatever_the_text() -> None:
    """BC-76: pieces join back whatever the text."""
    everything = "".join(chr(code) for code in range(0x30000) if not 0xD800 <= code < 0xE000)
    assert "".join(split_gpt2(everything)) == everything
    rng = random.Random(0)
    for _ in range(200):
        text = "".join(rng.choice("aé你1² \n\r\t\u00a0\u3000'’sver.,_🙂\u0301\x1c\x85") for _ in range(30))
        assert "".join(split_gpt2(text)) == text


def test_bc76_pieces_agree_with_regex() -> None:
    """BC-76: pieces agree with regex."""
    regex = pytest.importorskip("regex")
    pattern = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    # What is unassigned (Cn) depends on the version of Unicode; surrogates (Cs) are no characters.
    characters = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    text = "".join(f"a1 {c}{c}  a" for c in characters)
    assert split_gpt2(text) == pattern.findall(text)
    rng = random.Random(1)
    for _ in range(3000):
        text = "".join(rng.choice("aSLé你1² \n\r\t\u00a0\u3000'’strevmld.,_🙂\u0301\x1c\x85") for _ in range(20))
        assert split_gpt2(text) == pattern.findall(text)


def test_bc72_overlapping_pairs_are_counted_and_merged_leftmost_first() -> None:
    """BC-72: overlapping pairs are counted and merged leftmost first."""
    assert Merger([(97, 97)]).apply([b"aaaaa"]).tolist() == [256, 256, 97]
    assert Merger([(97, 97)]).apply([b"aaa", b"a", b"", b"baab"]).tolist() == [256, 97, 97, 98, 256, 98]
    # (1, 1) three times and (1, 2) three times when overlaps count: the smaller tuple; else (1, 2) would be first.
    assert learn_merges([bytes([1, 1, 1, 1, 2, 1, 2, 1, 2])], 1) == [(1, 1)]


@pytest.mark.parametrize("seed", range(8))
def test_bc72_encoding_is_greedy_by_rank(seed: int) -> None:
    """BC-72: encoding is greedy by rank."""
    pieces = random_pieces(seed, b"aab" if seed % 2 else b"abcd", 60, 40)
    merges = learn_merges(pieces, 40)
    others = random_pieces(seed + 100, b"abcd", 40, 60) + [b"a" * n for n in range(20)]
    expected = [token for piece in others for token in merged_plainly(piece, merges)]
    assert Merger(merges).apply(others).tolist() == expected


def test_bc72_ranks_need_not_be_those_of_training() -> None:
    """BC-72: ranks need not be those of training."""
    merges = [(98, 99), (97, 98), (97, 256), (258, 258)]
    for piece in random_pieces(3, b"abc", 200, 12):
        assert Merger(merges).apply([piece]).tolist() == merged_plainly(piece, merges)


def test_bc73_ties_go_to_the_smallest_pair() -> None:
    """BC-73: ties go to the smallest pair."""
    assert learn_merges([b"aaabdaaabac"], 3) == [(97, 97), (97, 98), (256, 257)]
    assert Merger(learn_merges([b"aaabdaaabac"], 3)).apply([b"aaabdaaabac"]).tolist() == [258, 100, 258, 97, 99]
    for text in (b"bbbaaaddddcccc", b"aaabbbccccdddd"):
        assert learn_merges([text], 4) == [(99, 99), (100, 100), (97, 97), (98, 98)]


@pytest.mark.parametrize("seed", range(8))
def test_bc73_incremental_counts_equal_a_recount(seed: int) -> None:
    """BC-73: incremental counts equal a recount."""
    pieces = random_pieces(seed, b"aab" if seed % 2 else b"abcde", 50, 30) * (1 + seed % 3)
    assert learn_merges(pieces, 60) == learned_plainly(pieces, 60)


def test_bc73_more_merges_than_exist_is_no_error() -> None:
    """BC-73: more merges than exist is no error."""
    assert learn_merges([b"abab"], 10) == [(97, 98), (256, 256)]
    assert learn_merges([], 3) == learn_merges([b"", b"a"], 3) == []
    tokenizer = ByteBPETokenizer.train("ab", 1000, ["<end>"])
    assert tokenizer.vocab_size == 258 and tokenizer.special_tokens == {"<end>": 257}


def test_bc73_the_hash_seed_has_no_influence() -> None:
    """BC-73: the hash seed has no influence."""
    # The data needs no engine: an empty package in its place keeps the six processes short.
    package = str(Path(tinygrad_tf.data.__file__).parent.parent)
    code = (
        "import sys, types\n"
        "sys.modules['tinygrad_tf'] = types.ModuleType('tinygrad_tf')\n"
        f"sys.modules['tinygrad_tf'].__path__ = [{package!r}]\n"
        "from tinygrad_tf.data import ByteBPETokenizer, CharTokenizer, toy_world\n"
        "text = toy_world(0, 5000, 10).train\n"
        "print(ByteBPETokenizer.train(text, 400).merges, CharTokenizer.train(text).characters.encode())\n"
        "c = toy_world(5, 3000, 3000); print(c.train.encode(), c.val.encode(), c.floor)"
    )
    printed = set()
    for seed in range(6):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        printed.add(
            subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout
        )
    assert len(printed) == 1


def trained(kind: str) -> Tokenizer:
    text = "".join(ODD_TEXTS)
    return CharTokenizer.train(text) if kind == "char" else ByteBPETokenizer.train(MIXED * 3, 300)


@pytest.mark.parametrize("kind", ["char", "bpe"])
@pytest.mark.parametrize("text", ODD_TEXTS)
def test_bc75_round_trip(kind: str, text: str) -> None:
    """BC-75: round trip."""
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    assert all(type(token) is int and 0 <= token < tokenizer.vocab_size for token in ids)
    assert tokenizer.decode(ids) == tokenizer.decode(np.array(ids, dtype=np.uint16)) == text
    assert tokenizer.encode_array(text).dtype == np.int64
    assert tokenizer.encode_array(text).tolist() == ids
    stream = tokenizer.stream()
    assert "".join(map(stream.feed, ids)) + stream.flush() == text


def test_bc75_empty_text_gives_no_ids_and_a_long_line_comes_back() -> None:
    """BC-75: empty text gives no ids and a long line comes back."""
    tokenizer = ByteBPETokenizer.train("aaaa bbbb 你好", 262)
    assert tokenizer.encode("") == tokenizer.encode("", "all") == [] and tokenizer.decode([]) == ""
    for line in ("a" * 200_000, "ab你" * 50_000):
        assert tokenizer.decode(tokenizer.encode_array(line)) == line


@pytest.mark.parametrize("text", ["ab🙂a", "ab\U0001f642", "abé"])
def test_bc75_an_unknown_character_is_named(text: str) -> None:
    """BC-75: an unknown character is named."""
    tokenizer = CharTokenizer.train("ab")
    with pytest.raises(ValueError, match=f"CharTokenizer: '{text[2]}' .U\\+.* at position 2 "):
        tokenizer.encode(text)
    with pytest.raises(ValueError, match="position 5"):
        CharTokenizer.train("ab", ["<x>"]).encode("ab<x>c", allowed_special="all")
    with pytest.raises(ValueError, match="position 0"):
        CharTokenizer("").encode("a")


def test_bc26_streaming_never_splits_a_character() -> None:
    """BC-26: streaming never splits a character."""
    ids = [228, 189, 160, 229, 165, 189, 240, 159, 153, 130]
    tokenizer = ByteBPETokenizer([])
    stream = tokenizer.stream()
    assert [stream.feed(token) for token in ids] == ["", "", "你", "", "", "好", "", "", "", "🙂"]
    assert stream.flush() == ""
    for token in ids[:8]:
        stream.feed(token)
    assert stream.flush() == "\ufffd" and stream.flush() == ""
    assert stream.feed(97) == "a"


def test_bc26_garbage_does_not_stall_the_stream() -> None:
    """BC-26: garbage does not stall the stream."""
    stream = ByteBPETokenizer([]).stream()
    assert [stream.feed(byte) for byte in b"a\xffb\xe4\xbdc"] == ["a", "\ufffd", "b", "", "", "\ufffdc"]


@pytest.mark.parametrize("skip_special", [False, True])
def test_bc26_pieces_join_to_decode_for_any_ids(skip_special: bool) -> None:
    """BC-26: pieces join to decode for any ids."""
    tokenizer = ByteBPETokenizer.train("你好🙂 aé" * 5, 270, ["<end>"])
    rng = random.Random(0)
    likely = [*"你好🙂aé".encode(), *range(256, tokenizer.vocab_size)]
    for _ in range(500):
        ids = [rng.choice(likely) for _ in range(rng.randint(0, 12))]
        stream = tokenizer.stream(skip_special)
        assert "".join(map(stream.feed, ids)) + stream.flush() == tokenizer.decode(ids, skip_special)


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_bc59_special_tokens_only_when_allowed(kind: str) -> None:
    """BC-59: special tokens only when allowed."""
    text = "a<|endoftext|>b"
    specials = ["<|endoftext|>"]
    tokenizer = CharTokenizer.train(text, specials) if kind == "char" else ByteBPETokenizer.train(text, 262, specials)
    end = tokenizer.special_tokens["<|endoftext|>"]
    assert end == tokenizer.vocab_size - 1
    assert end not in tokenizer.encode(text) and tokenizer.decode(tokenizer.encode(text)) == text
    for allowed in ("all", specials, set(specials), "<|endoftext|>"):
        ids = tokenizer.encode(text, allowed_special=allowed)
        assert ids == tokenizer.encode("a") + [end] + tokenizer.encode("b")
        assert tokenizer.decode(ids) == text and tokenizer.decode(ids, skip_special=True) == "ab"
    with pytest.raises(ValueError, match="is not a special token"):
        tokenizer.encode(text, allowed_special=["<other>"])


def test_bc59_overlapping_specials_and_regex_characters() -> None:
    """BC-59: overlapping specials and regex characters."""
    tokenizer = ByteBPETokenizer([], ["<|a|>", "<|a|>b", ".*[x]+"])
    short, long, pattern = 256, 257, 258
    assert tokenizer.encode("<|a|>b<|a|>c", "all") == [long, short, 99]
    assert tokenizer.encode("<|a|>b", ["<|a|>"]) == [short, 98]
    assert tokenizer.encode("wo.*[x]+rd", "all") == [*b"wo", pattern, *b"rd"]
    assert tokenizer.encode("xxx", "all") == [*b"xxx"]


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="vocab_size must be at least 257"):
        ByteBPETokenizer.train("a", 256, ["<end>"])
    with pytest.raises(ValueError, match="merge 1 must join ids from 0 to 256"):
        ByteBPETokenizer([(97, 97), (97, 257)])
    with pytest.raises(ValueError, match="distinct"):
        CharTokenizer("ab", ["<x>", "<x>"])
    for ids in ([256], [-1], [97, 1000]):
        with pytest.raises(ValueError, match=f"id {ids[-1]} is outside"):
            ByteBPETokenizer([]).decode(ids)
        with pytest.raises(ValueError, match="outside"):
            ByteBPETokenizer([]).stream().feed(ids[-1])
    with pytest.raises(ValueError, match="position 1 "):
        ByteBPETokenizer([]).encode("a\ud800")


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_a_saved_tokenizer_is_the_same(kind: str, tmp_path: Path) -> None:
    specials = ["<|结束|>", "<b>"]
    tokenizer = CharTokenizer.train(MIXED, specials) if kind == "char" else ByteBPETokenizer.train(MIXED, 290, specials)
    path = tmp_path / "tokenizer.json"
    path.write_text("old")
    tokenizer.save(path)
    again = load_tokenizer(path)
    assert type(again) is type(tokenizer) and again.vocab_size == tokenizer.vocab_size
    assert again.encode(MIXED + "<b>", "all") == tokenizer.encode(MIXED + "<b>", "all")
    assert os.listdir(tmp_path) == ["tokenizer.json"]
    first = path.read_bytes()
    again.save(path)
    assert path.read_bytes() == first


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    CharTokenizer.train("ab").save(path)

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(json, "dump", fail)
    with pytest.raises(OSError, match="full"):
        CharTokenizer.train("xyz").save(path)
    assert os.listdir(tmp_path) == ["tokenizer.json"]
    assert load_tokenizer(path).encode("b") == [1]


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"kind": "char", "version": 2, "special_tokens": []}', "\xff"])
def test_a_file_that_holds_no_tokenizer(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load_tokenizer(path)
    with pytest.raises(FileNotFoundError):
        load_tokenizer(tmp_path / "none.json")
