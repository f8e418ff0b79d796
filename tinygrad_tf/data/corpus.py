"""What a corpus is: two texts and what is known about them."""

from dataclasses import dataclass


class DataError(ValueError):
    """The data cannot be used; the message is one line for the person who named it."""


@dataclass(frozen=True)
class Corpus:
    """A text to learn from and a text to be judged on.

    Arguments:
        name: what was asked for, as it is shown to the user.
        train, val: the two texts.
        floor: the mean loss per character of `val` (nats) of a model that knows the truth, where the truth is known.
        sentence_starts: every line is a text of its own, so windows start where a line starts, and
            validation scores whole lines (`tinygrad_tf.data.sentence_windows`).

    Example:
        >>> Corpus("mine", "abc", "d").floor is None
        True
    """

    name: str
    train: str
    val: str
    floor: float | None = None
    sentence_starts: bool = False
