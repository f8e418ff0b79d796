"""Write on from a prompt with a trained GPT, and list what it finds likeliest.

    python examples/generate.py runs/toy-world --prompt 今天天气真好，我想去 --top 5

Of a model that learned the toy world, the next words are listed beside their true probabilities.
"""

from __future__ import annotations

import argparse
import os
import sys
import unicodedata
from pathlib import Path

import numpy as np
from train_gpt import Parser, UsageError, number, read_config, whole

from tinygrad_tf import data, models, training


def load_run(run: Path) -> tuple[models.GPT, data.Tokenizer, bool, str]:
    """Model, tokenizer, whether its texts start at line starts, and the name of its data."""
    config = read_config(run)
    model = models.GPT(models.GPTConfig.from_dict(config["model"]))
    training.load_model(model, run)
    model.eval()
    tokenizer = data.load_tokenizer(run / "tokenizer.json")
    return model, tokenizer, bool(config["sentence_starts"]), str(config["options"]["data"])


def next_probabilities(model: models.GPT, ids: list[int]) -> np.ndarray:
    """p(next token | ids), of shape (vocab_size,)."""
    from tinygrad_tf import no_grad, tensor

    with no_grad():
        logits = model.next_logits(tensor(np.array([ids[-model.block_size :]], dtype=np.int64)))
    return np.asarray(models.next_probabilities(logits)[0])


def word_probability(model: models.GPT, tokenizer: data.Tokenizer, ids: list[int], word: str) -> float:
    """p(word | ids): the product of its tokens' probabilities."""
    probability, context = 1.0, list(ids)
    for token in tokenizer.encode(word):
        probability *= float(next_probabilities(model, context)[token])
        context.append(token)
    return probability


def shown(text: str, width: int) -> str:
    """The text as a literal, padded to `width` columns; Chinese characters take two."""
    literal = repr(text)
    columns = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in literal)
    return literal + " " * max(0, width - columns)


def list_words(model: models.GPT, tokenizer: data.Tokenizer, ids: list[int], prompt: str, top: int) -> bool:
    """The grammar's next words, with the model's and the true probabilities; False if it knows no such sentence."""
    try:
        true = data.continuations(prompt)
    except ValueError:
        return False
    rows = [(word_probability(model, tokenizer, ids, word), p, word) for word, p in list(true.items())]
    print(f"\nThe likeliest next words after {prompt!r}:\n  {'word':<16} model   true")
    for p, q, word in sorted(rows, key=lambda row: -row[0])[:top]:
        print(f"  {shown(word, 16)} {p:.3f}  {q:.3f}")
    return True


def list_tokens(model: models.GPT, tokenizer: data.Tokenizer, ids: list[int], prompt: str, top: int) -> None:
    """The likeliest next tokens."""
    probabilities = next_probabilities(model, ids)
    print(f"\nThe likeliest next tokens after {prompt!r}:")
    for token in np.argsort(-probabilities, kind="stable")[:top]:
        print(f"  {shown(tokenizer.decode([int(token)]), 16)} {probabilities[token]:.3f}")


def main(argv: list[str] | None = None) -> int:
    """Run it; return the exit status."""
    parser = Parser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder of train_gpt.py")
    parser.add_argument("--prompt", default="", help="the text to write on from")
    parser.add_argument("--top", type=whole(0), default=0, metavar="N", help="list the N likeliest continuations")
    parser.add_argument("--max-new-tokens", type=whole(0), default=100, help="how much to write")
    parser.add_argument("--temperature", type=number(0), default=1.0, help="0 takes the likeliest token always")
    parser.add_argument("--top-k", type=whole(1), help="draw among the k likeliest only")
    parser.add_argument("--top-p", type=number(0, 1.000001), help="draw among the likeliest that weigh p together")
    parser.add_argument("--seed", type=whole(0), help="the same seed gives the same text")
    options = parser.parse_args(argv)
    try:
        model, tokenizer, lines, name = load_run(options.run)
        start = "\n" if lines or not options.prompt else ""  # texts of the toy world start after a newline
        try:
            ids = tokenizer.encode(start + options.prompt)
        except ValueError as error:
            if options.prompt:
                raise UsageError(f"--prompt: {error}") from None
            ids = [0]
        steps = models.generate_stream(
            model,
            np.array(ids),
            options.max_new_tokens,
            options.temperature,
            options.top_k,
            options.top_p,
            options.seed,
        )
        stream = tokenizer.stream()
        print(options.prompt, end="", flush=True)
        for new in steps:
            print(stream.feed(int(new[0])), end="", flush=True)
        print(stream.flush())
        if options.top:
            known = name == "toy-world" and list_words(model, tokenizer, ids, options.prompt, options.top)
            if not known:
                list_tokens(model, tokenizer, ids, options.prompt, options.top)
    except KeyboardInterrupt:
        print()
        return 130
    except BrokenPipeError:  # the reader, `head` for instance, has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UsageError, data.DataError, training.CheckpointError, OSError, ImportError, ValueError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
