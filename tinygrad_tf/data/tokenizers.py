"""From text to token ids and back: characters, and byte-level byte-pair encoding.

Both keep every text exactly, whatever it contains that they know. Text that spells a special token is ordinary text
unless the caller allows it, so that what a user types cannot end a document.
"""

import codecs
import contextlib
import json
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygrad_tf.data.bpe import Ints, Merger, Pair, learn_merges
from tinygrad_tf.data.splitter import split_gpt2

Ids = Iterable[int] | NDArray[np.integer[Any]]


class Tokenizer(ABC):
    """What the two tokenizers share: special tokens, decoding of runs, streaming and files.

    Ids 0 ... n-1 are ordinary tokens, n ... vocab_size-1 the special ones, in the order given.
    """

    kind: str

    def __init__(self, n_ordinary: int, special_tokens: Sequence[str] = ()) -> None:
        if isinstance(special_tokens, str):
            special_tokens = (special_tokens,)
        if "" in special_tokens or len(set(special_tokens)) != len(special_tokens):
            raise ValueError(
                f"{type(self).__name__}: special tokens must be distinct and not empty, got {list(special_tokens)}"
            )
        self._n_ordinary = n_ordinary
        self.special_tokens: dict[str, int] = {token: n_ordinary + i for i, token in enumerate(special_tokens)}
        self._special_texts = list(special_tokens)

    @property
    def vocab_size(self) -> int:
        """How many ids there are, special tokens included."""
        return self._n_ordinary + len(self.special_tokens)

    @abstractmethod
    def _encode_ordinary(self, text: str, offset: int) -> Ints:
        """The ids of a text without special tokens, which begins at character `offset` of what the user gave."""

    @abstractmethod
    def _ordinary_bytes(self, token: int) -> bytes:
        """The bytes of an ordinary token (UTF-8, possibly part of a character)."""

    @abstractmethod
    def _description(self) -> dict[str, Any]:
        """What the file must hold beside the kind and the special tokens."""

    def encode(self, text: str, allowed_special: Collection[str] = ()) -> list[int]:
        """The ids of `text`.

        Arguments:
            text: any text; "" gives [].
            allowed_special: special tokens that become their one id where `text` spells them (the longest first);
                "all" for all of them. The others, by default all, are encoded as the ordinary text they look like.

        Raises ValueError for a character that the tokenizer does not know, and for an unknown special token.

        Example:
            >>> tokenizer = CharTokenizer.train("abc", special_tokens=["<end>"])
            >>> tokenizer.encode("cab<end>", allowed_special="all")
            [2, 0, 1, 3]
        """
        ids: list[int] = self.encode_array(text, allowed_special).tolist()
        return ids

    def encode_array(self, text: str, allowed_special: Collection[str] = ()) -> Ints:
        """As `encode`, as an int64 array of shape (tokens,): for whole corpora."""
        if isinstance(allowed_special, str):
            allowed_special = list(self.special_tokens) if allowed_special == "all" else [allowed_special]
        for token in allowed_special:
            if token not in self.special_tokens:
                raise ValueError(f"encode: {token!r} is not a special token; there are {self._special_texts}")
        if not allowed_special:
            return self._encode_ordinary(text, 0)
        longest_first = sorted(allowed_special, key=len, reverse=True)
        pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        parts: list[Ints] = []
        offset = 0
        for i, part in enumerate(pattern.split(text)):
            if i % 2:
                parts.append(np.array([self.special_tokens[part]], dtype=np.int64))
            elif part:
                parts.append(self._encode_ordinary(part, offset))
            offset += len(part)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def decode(self, ids: Ids, skip_special: bool = False) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. `skip_special` leaves special tokens out.

        Raises ValueError for an id outside the vocabulary.

        Example:
            >>> ByteBPETokenizer([]).decode([228, 189, 160])
            '你'
        """
        text: list[str] = []
        for special, run in groupby(map(int, ids), key=lambda token: token >= self._n_ordinary):
            if special:
                texts = [self._special_text(token) for token in run]
                text.extend(() if skip_special else texts)
            else:
                text.append(b"".join(map(self.token_bytes, run)).decode("utf-8", errors=self._errors))
        return "".join(text)

    _errors = "replace"

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for."""
        if 0 <= token < self._n_ordinary:
            return self._ordinary_bytes(token)
        return self._special_text(token).encode()

    def _special_text(self, token: int) -> str:
        if not self._n_ordinary <= token < self.vocab_size:
            raise ValueError(f"decode: id {token} is outside the vocabulary, which has ids 0 to {self.vocab_size - 1}")
        return self._special_texts[token - self._n_ordinary]

    def stream(self, skip_special: bool = False) -> "StreamingDecoder":
        """A decoder that takes one id at a time and never shows a part of a character."""
        return StreamingDecoder(self, skip_special)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer as JSON, first beside `path`, then renamed: a file of that name is always whole."""
        description = {"kind": self.kind, "version": 1, **self._description(), "special_tokens": self._special_texts}
        path = Path(path)
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="ascii", newline="") as file:
                json.dump(description, file)
                file.flush()
                os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(beside, 0o666 & ~umask)  # mkstemp's files are for the owner alone
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise


class StreamingDecoder:
    """Text as it arrives: what `feed` gives, id by id, and `flush` at the end, join to what `decode` gives.

    Example:
        >>> decoder = ByteBPETokenizer([]).stream()
        >>> [decoder.feed(token) for token in "你!".encode()], decoder.flush()
        (['', '', '你', '!'], '')
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors=tokenizer._errors)

    def feed(self, token: int) -> str:
        """The text that is certain now, "" while a character is incomplete."""
        token = int(token)
        if 0 <= token < self._tokenizer._n_ordinary:
            return self._utf8.decode(self._tokenizer.token_bytes(token))
        special = self._tokenizer._special_text(token)
        return self.flush() + ("" if self._skip_special else special)

    def flush(self) -> str:
        """What is left: U+FFFD for a character that was cut off, else "". The decoder is then as new."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


class CharTokenizer(Tokenizer):
    """One id for each character of the training text, in the order of code points.

    Arguments:
        characters: the characters, each once.
        special_tokens: further tokens, which ordinary text never gives.

    Example:
        >>> tokenizer = CharTokenizer.train("hello")
        >>> tokenizer.encode("hole"), tokenizer.decode([1, 0, 2, 2])
        ([1, 3, 2, 0], 'hell')
    """

    kind = "char"
    _errors = "surrogatepass"

    def __init__(self, characters: str, special_tokens: Sequence[str] = ()) -> None:
        self.characters = "".join(sorted(set(characters)))
        super().__init__(len(self.characters), special_tokens)
        self._codes = _code_points(self.characters)

    @classmethod
    def train(cls, text: str, special_tokens: Sequence[str] = ()) -> "CharTokenizer":
        """The tokenizer of the characters that occur in `text`."""
        return cls(text, special_tokens)

    def _encode_ordinary(self, text: str, offset: int) -> Ints:
        codes = _code_points(text)
        ids = np.searchsorted(self._codes, codes).astype(np.int64)
        known = np.zeros(len(codes), dtype=bool)
        inside = ids < len(self._codes)
        known[inside] = self._codes[ids[inside]] == codes[inside]
        if not known.all():
            at = int(np.argmin(known))
            raise ValueError(
                f"CharTokenizer: {text[at]!r} (U+{ord(text[at]):04X}) at position {offset + at} "
                f"is not one of the {len(self.characters)} characters it was trained on"
            )
        return ids

    def _ordinary_bytes(self, token: int) -> bytes:
        return self.characters[token].encode("utf-8", errors="surrogatepass")

    def _description(self) -> dict[str, Any]:
        return {"characters": [ord(character) for character in self.characters]}


class ByteBPETokenizer(Tokenizer):
    """Byte-level byte-pair encoding: ids 0 to 255 are bytes, 256 + r is the merge of rank r, then the special tokens.

    Text is cut as GPT-2 cuts it (`tinygrad_tf.data.splitter`), its pieces become bytes, and within a piece the pair
    of lowest rank merges first, the leftmost of them first. Any text is encoded and comes back exactly.

    Arguments:
        merges: pairs of ids, in order of rank.
        special_tokens: further tokens, which ordinary text never gives.

    Raises ValueError if a merge names an id that does not exist yet.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.2.

    Example:
        >>> tokenizer = ByteBPETokenizer.train("low lower lowest", vocab_size=258)
        >>> tokenizer.encode("low"), tokenizer.decode(tokenizer.encode("你好🙂"))
        ([257], '你好🙂')
    """

    kind = "byte-bpe"

    def __init__(self, merges: Sequence[Pair], special_tokens: Sequence[str] = ()) -> None:
        self._bytes = [bytes([byte]) for byte in range(256)]
        for rank, (a, b) in enumerate(merges):
            if not (0 <= a < 256 + rank and 0 <= b < 256 + rank):
                raise ValueError(
                    f"ByteBPETokenizer: merge {rank} must join ids from 0 to {255 + rank}, got {(int(a), int(b))}"
                )
            self._bytes.append(self._bytes[a] + self._bytes[b])
        self.merges = [(int(a), int(b)) for a, b in merges]
        self._merger = Merger(self.merges)
        super().__init__(len(self._bytes), special_tokens)

    @classmethod
    def train(cls, text: str, vocab_size: int, special_tokens: Sequence[str] = ()) -> "ByteBPETokenizer":
        """Learn merges from `text` until there are `vocab_size` ids, or no pair is left to merge.

        Arguments:
            text: the training text. Where it spells a special token, that is ordinary text here too.
            vocab_size: 256 bytes, the merges, and the special tokens.

        Among equally frequent pairs the smallest merges first: the same text gives the same merges everywhere.
        Raises ValueError if vocab_size is too small for the bytes and the special tokens.
        """
        if isinstance(special_tokens, str):
            special_tokens = (special_tokens,)
        n_merges = vocab_size - 256 - len(special_tokens)
        if n_merges < 0:
            raise ValueError(
                f"ByteBPETokenizer: vocab_size must be at least {256 + len(special_tokens)} "
                f"(256 bytes and {len(special_tokens)} special tokens), got {vocab_size}"
            )
        return cls(learn_merges(_pieces(text, 0), n_merges), special_tokens)

    def _encode_ordinary(self, text: str, offset: int) -> Ints:
        return self._merger.apply(_pieces(text, offset))

    def _ordinary_bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def _description(self) -> dict[str, Any]:
        return {"pattern": "gpt2", "merges": self.merges}


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")


def _pieces(text: str, offset: int) -> Iterator[bytes]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"ByteBPETokenizer: half a surrogate pair at position {offset + error.start} is no character"
        ) from None
    return (piece.encode() for piece in split_gpt2(text))


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Read what `Tokenizer.save` wrote.

    Raises FileNotFoundError if there is no such file, ValueError if it holds no tokenizer of ours.

    Example:
        >>> import tempfile, os
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     CharTokenizer.train("ab").save(os.path.join(folder, "tokenizer.json"))
        ...     load_tokenizer(os.path.join(folder, "tokenizer.json")).encode("ba")
        [1, 0]
    """
    try:
        description = json.loads(Path(path).read_bytes().decode("utf-8"))
        kind, version, special_tokens = (description[key] for key in ("kind", "version", "special_tokens"))
        if version != 1:
            raise ValueError(f"version {version} is not 1")
        if kind == CharTokenizer.kind:
            return CharTokenizer("".join(map(chr, description["characters"])), special_tokens)
        if kind == ByteBPETokenizer.kind and description["pattern"] == "gpt2":
            return ByteBPETokenizer([(a, b) for a, b in description["merges"]], special_tokens)
        raise ValueError(f"kind {kind!r} is not known")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"load_tokenizer: {path} holds no tokenizer of tinygrad_tf ({error})") from error
