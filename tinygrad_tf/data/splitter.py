"""GPT-2's pre-tokenisation without a regular-expression library that knows Unicode categories.

The pattern of "Language Models are Unsupervised Multitask Learners" (Radford et al., 2019; the released encoder) is

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

The standard library's `re` has no \\p{L}. So each character is first replaced by an ASCII character that stands for
its class, which keeps positions; the pattern then needs ASCII classes only, and its spans cut the original text.
"""

import re
from unicodedata import category

# White_Space characters that unicodedata files under control characters rather than separators.
_CONTROL_SPACES = frozenset("\t\n\x0b\x0c\r\x85")
# Classes: a letter, 0 number, newline white space other than " ", . anything else.
_PATTERN = re.compile(r"'(?:[stmd]|re|ve|ll)| ?[a-z]+| ?0+| ?[.']+|[ \n]+(?![^ \n])|[ \n]+")


class _Classes(dict[int, str]):
    """Code point -> its class, worked out when first met; itself where the pattern names the character."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kind = category(character)
        if character in " 'strevmld":
            stands_for = character
        elif kind[0] == "L":
            stands_for = "a"
        elif kind[0] == "N":
            stands_for = "0"
        elif kind[0] == "Z" or character in _CONTROL_SPACES:
            stands_for = "\n"
        else:
            stands_for = "."
        self[code] = stands_for
        return stands_for


_classes = _Classes()


def split_gpt2(text: str) -> list[str]:
    """The pieces inside which byte pairs may merge; joined, they are `text` again.

    Example:
        >>> split_gpt2("I've 12 apples, 你好!")
        ['I', "'ve", ' 12', ' apples', ',', ' 你好', '!']
    """
    return [text[match.start() : match.end()] for match in _PATTERN.finditer(text.translate(_classes))]
