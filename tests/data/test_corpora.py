"""Corpora: what is read, in which order, and what is said when it cannot be used."""

from pathlib import Path

import pytest

from tinygrad_tf.data import Corpus, DataError, check_length, load_corpus, python_docs, read_text, toy_world


def test_a_file_is_split_by_characters_as_nanogpt_does(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    text = "你a🙂" * 37
    path.write_bytes(text.encode())
    n = int(0.9 * len(text))
    assert load_corpus(str(path)) == Corpus(str(path), text[:n], text[n:])
    assert load_corpus(path, val_fraction=0.5).train == text[: len(text) // 2]


def test_bc75_byte_order_mark_and_line_ends(tmp_path: Path) -> None:
    """BC-75: byte order mark and line ends."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert read_text(path) == "a\r\nb"
    path.write_bytes(b"a\rb\n\xef\xbb\xbf")
    assert read_text(path) == "a\rb\n\ufeff"


def test_a_folder_and_a_glob_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.txt").write_bytes(b"3\n")
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf1")
    (tmp_path / "b.txt").write_bytes(b"2\r\n")
    (tmp_path / "c.md").write_bytes(b"4")
    (tmp_path / "folder.txt").mkdir()

    def text(spec: str) -> str:
        corpus = load_corpus(spec)
        return corpus.train + corpus.val

    assert text(str(tmp_path)) == "1\n2\r\n3\n"
    assert text(str(tmp_path / "*.txt")) == "1\n2\r\n"
    assert text(str(tmp_path / "**" / "*.[tm]*")) == "1\n2\r\n3\n4"


def test_a_name_with_brackets_is_a_file_if_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_bytes(b"bracket words")
    assert load_corpus(str(tmp_path / "a[1].txt")).train.startswith("bracket")


def test_data_that_cannot_be_used_is_named_in_one_line(tmp_path: Path) -> None:
    def message(spec: Path, **options: float) -> str:
        with pytest.raises(DataError) as caught:
            load_corpus(str(spec), **options)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "there is no such file" in message(tmp_path / "none.txt")
    assert "no *.txt file in this folder" in message(tmp_path)
    assert "no file has such a name" in message(tmp_path / "*.md")
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\xef\xbb\xbfok\xffno")
    assert f"{bad}: byte 0xff at offset 5 is not UTF-8" in message(bad)
    assert "byte 0xff at offset 5" in message(tmp_path)
    bad.write_bytes("你".encode()[:2])
    assert "byte 0xe4 at offset 0" in message(bad)
    for empty in (b"", b"\xef\xbb\xbf", b" \r\n\n"):
        bad.write_bytes(empty)
        assert "there is no text in it" in message(bad)
    for fraction in (0.0, 1.0, -1.0, float("nan")):
        assert "val_fraction must be between 0 and 1" in message(bad, val_fraction=fraction)
    assert issubclass(DataError, ValueError)


def test_the_shortest_text_that_has_a_window() -> None:
    check_length([0] * 9, 8)
    with pytest.raises(DataError, match="the training text has 8 tokens, but block_size 8 needs at least 9"):
        check_length([0] * 8, 8, "the training text")


def test_the_toy_world_by_name() -> None:
    assert load_corpus("toy-world", seed=2) == toy_world(2)


def test_python_docs_are_english_and_the_same_each_time() -> None:
    text = python_docs()
    assert len(text) > 300_000 and " the " in text
    corpus = load_corpus("python-docs")
    assert corpus.train + corpus.val == text and not corpus.sentence_starts and corpus.floor is None
