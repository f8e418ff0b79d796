"""Where texts come from: the toy world, files, folders, globs, and the docstrings of Python's own library."""

import ast
import glob
import os
import sysconfig
import warnings
from collections.abc import Iterator, Sized
from functools import cache
from pathlib import Path

from tinygrad_tf.data.corpus import Corpus, DataError
from tinygrad_tf.data.toy_world import toy_world

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_BOM = b"\xef\xbb\xbf"
_NOT_DOCUMENTATION = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "idlelib"}
)


def load_corpus(spec: str | os.PathLike[str], *, val_fraction: float = 0.1, seed: int = 0) -> Corpus:
    """The corpus that `spec` names.

    Arguments:
        spec: "toy-world"; "python-docs"; a text file; a folder (all its *.txt, in subfolders too, in the order of their
            paths); or a glob such as "poems/*.md" (** goes through subfolders).
        val_fraction: the last part of the text, by characters, that is for validation. The toy world draws its own.
        seed: for the toy world.

    Files are UTF-8. A byte order mark at the start is dropped; line ends stay as they are, so a file gives the same
    text on every system. Where the last line of a file has no end, one is added before the next file.

    Raises DataError, with one line for the user: a missing file, bytes that are no UTF-8 (which file, where), no text.

    Example:
        >>> load_corpus("toy-world").sentence_starts
        True
    """
    if not 0.0 < val_fraction < 1.0:
        raise DataError(f"load_corpus: val_fraction must be between 0 and 1, got {val_fraction}")
    name = os.fspath(spec)
    if name == "toy-world":
        return toy_world(seed)
    text = python_docs() if name == "python-docs" else _read_all(name)
    if not text.strip():
        raise DataError(f"{name}: there is no text in it")
    n = int((1 - val_fraction) * len(text))
    return Corpus(name, text[:n], text[n:])


def check_length(tokens: Sized, block_size: int, name: str = "the text") -> None:
    """Raise DataError unless `tokens` has room for one window and the token after it: block_size + 1.

    Example:
        >>> check_length(range(65), 64)
        >>> check_length(range(64), 64, "the validation text")
        Traceback (most recent call last):
        tinygrad_tf.data.corpus.DataError: the validation text has 64 tokens, but block_size 64 needs at least 65
    """
    if len(tokens) < block_size + 1:
        raise DataError(f"{name} has {len(tokens)} tokens, but block_size {block_size} needs at least {block_size + 1}")


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a UTF-8 file: without a byte order mark, with its own line ends. Raises DataError."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror or error})") from None
    skipped = len(_BOM) if data.startswith(_BOM) else 0
    try:
        return data[skipped:].decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte {data[skipped + error.start]:#04x} at offset {skipped + error.start} is not UTF-8 text"
        ) from None


def _read_all(name: str) -> str:
    """The texts of the file, folder or glob `name`, one after another."""
    if os.path.isdir(name):
        paths = sorted(Path(name).rglob("*.txt"), key=lambda path: path.relative_to(name).as_posix())
        none = f"{name}: there is no *.txt file in this folder"
    elif os.path.exists(name) or not glob.has_magic(name):
        return read_text(name)
    else:
        paths = sorted(map(Path, glob.glob(name, recursive=True)), key=Path.as_posix)
        none = f"{name}: no file has such a name"
    paths = [path for path in paths if path.is_file()]
    if not paths:
        raise DataError(none)
    texts = [read_text(path) for path in paths]
    return "".join(
        t if t.endswith(("\n", "\r")) or not t or i == len(texts) - 1 else t + "\n" for i, t in enumerate(texts)
    )


@cache
def python_docs() -> str:
    """The docstrings of the running Python's standard library, each once, in the order of paths; nothing is imported.

    Raises DataError where the library's source is not there.
    """
    library = Path(sysconfig.get_path("stdlib"))
    sources = []
    for folder, subfolders, files in os.walk(library):
        subfolders[:] = sorted(set(subfolders) - _NOT_DOCUMENTATION)
        sources += [Path(folder, file) for file in files if file.endswith(".py")]
    sources.sort(key=lambda path: path.relative_to(library).as_posix())
    docstrings: dict[str, None] = {}  # in the order of first appearance
    for source in sources:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # old escapes in the library's sources are not the user's concern
                tree = ast.parse(source.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # a template, or a file made to be broken
        for node in _documented(tree):
            text = (ast.get_docstring(node) or "").strip()
            if text:
                docstrings.setdefault(text)
    if not docstrings:
        raise DataError("python-docs: this Python has no source of its standard library")
    return "\n\n".join(docstrings) + "\n"


def _documented(node: Documented) -> Iterator[Documented]:
    """A module, class or function and those inside it, in the order of the source; expressions are not looked at."""
    yield node
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _documented(child)
