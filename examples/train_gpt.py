"""Train a GPT on a text, and keep everything about it in a run folder.

    python examples/train_gpt.py                               # the toy world, whose true entropy is known
    python examples/train_gpt.py --data poems.txt --steps 2000
    python examples/train_gpt.py --resume runs/toy-world       # go on, bit for bit as if it had never stopped

The run folder holds config.json, metrics.jsonl, loss.png, tokenizer.json and the checkpoints in ckpt/. Needs
`pip install 'tinygrad_tf[train]'`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import data, models, training

NOT_SETTINGS = {"out", "resume", "threads", "stop_at", "no_capture"}  # what may differ when a run goes on


def whole(low: int) -> Any:
    """An argparse type: an integer of at least `low`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected an integer, got {text!r}") from None
        if value < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}, got {value}")
        return value

    return convert


def number(low: float, below: float = math.inf) -> Any:
    """An argparse type: a finite number in [low, below)."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
        if not low <= value < below:
            limit = "" if below == math.inf else f" and below {below:g}"
            raise argparse.ArgumentTypeError(f"must be a finite number of at least {low:g}{limit}, got {text}")
        return value

    return convert


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def make_parser() -> Parser:
    """All options."""
    parser = Parser(
        description="Train a GPT on a text.", formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--data", default="toy-world", help="toy-world, python-docs, a text file, a folder, or a glob such as 'a/*.txt'"
    )
    add(
        "--tokenizer", default="char", choices=("char", "bpe"), help="characters, or byte-level BPE trained on the text"
    )
    add("--vocab-size", type=whole(256), default=512, help="of bpe")
    add("--n-layer", type=whole(1), default=3, help="blocks")
    add("--n-head", type=whole(1), default=4, help="attention heads")
    add("--n-embd", type=whole(1), default=128, help="width of the stream")
    add("--block-size", type=whole(1), default=64, help="tokens the model reads at once")
    add("--batch-size", type=whole(1), default=16, help="windows in a batch")
    add("--accumulate", type=whole(1), default=1, help="batches in a step")
    add("--no-capture", action="store_true", help="run Python at every step, which takes longer")
    add("--steps", type=whole(1), default=1000, help="steps, and the end of the cosine schedule")
    add("--lr", type=number(0), default=2e-3, help="learning rate after the warm-up")
    add("--min-lr", type=number(0), help="learning rate at the end (default: lr / 100)")
    add("--warmup", type=whole(0), help="steps of warm-up (default: 100, or a tenth of the steps if that is less)")
    add("--beta2", type=number(0, 1), default=0.99, help="decay rate of AdamW's second moment")
    add("--weight-decay", type=number(0), default=0.1, help="of matrices; biases and norms do not decay")
    add("--grad-clip", type=number(0), default=1.0, help="bound of the gradient's norm; 0 for none")
    add("--dropout", type=number(0, 1), default=0.0, help="probability of dropping")
    add("--no-bias", action="store_true", help="leave out all biases")
    add("--activation", default="gelu", help="gelu, relu, silu, swiglu, geglu, ...")
    add("--norm", default="layer", choices=("layer", "rms"), help="kind of norm")
    add("--placement", default="pre", choices=("pre", "post"), help="where the norms stand")
    add("--position", default="learned", choices=("learned", "sinusoidal", "rotary", "alibi", "none"), help="positions")
    add("--eval-every", type=whole(1), default=250, help="steps between evaluations, each followed by a checkpoint")
    add(
        "--eval-batches", type=whole(1), default=20, help="of an evaluation; the toy world uses all its validation text"
    )
    add("--seed", type=whole(0), default=1337, help="of the weights, the batches and dropout")
    add("--threads", type=whole(1), help="threads for the kernels (default: one per core)")
    add("--out", metavar="DIR", help="the run folder (default: runs/NAME of the data)")
    add("--resume", metavar="DIR", help="go on with the run in DIR, with all its settings")
    add("--stop-at", type=whole(1), metavar="STEP", help="stop after this step of the schedule, with a checkpoint")
    return parser


class UsageError(Exception):
    """What the user asked for cannot be done; one line says why."""


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, Path]:
    """The options and the run folder; of a resumed run they come from its config.json."""
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.resume is None:
        if options.min_lr is None:
            options.min_lr = options.lr / 100
        if options.warmup is None:
            options.warmup = min(100, options.steps // 10)
        name = Path(options.data).stem if "*" not in options.data else "glob"
        return options, Path(options.out or Path("runs") / (name or "text"))
    run = Path(options.resume)
    config = read_config(run)
    given = Parser(argument_default=argparse.SUPPRESS, add_help=False, allow_abbrev=False)
    for action in parser._actions:  # which options were written, rather than left at their defaults
        if not isinstance(action, argparse._HelpAction):
            given._add_action(action)
            action.default = argparse.SUPPRESS
    written = vars(given.parse_args(argv))
    for key, value in written.items():
        if key in NOT_SETTINGS - {"out"}:
            continue
        if key == "out":
            if Path(value).resolve() != run.resolve():
                raise UsageError(f"--resume {run} goes on in {run}; --out {value} is another folder")
        elif config["options"].get(key) != value:
            raise UsageError(
                f"--resume takes all settings from {run / 'config.json'}, where --{key.replace('_', '-')} is "
                f"{config['options'].get(key)}; it cannot become {value}"
            )
    now = {key: getattr(options, key) for key in NOT_SETTINGS - {"out"}}
    settings = {**config["options"], **now}
    return argparse.Namespace(**settings), run


def read_config(run: Path) -> dict[str, Any]:
    """The config.json of a run folder."""
    path = run / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_bytes())
        if not isinstance(config["options"], dict) or not isinstance(config["model"], dict):
            raise ValueError("entries are missing")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; is {run} a run folder?") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: the file is damaged ({error})") from None
    return config


def prepare(options: argparse.Namespace, run: Path) -> tuple[training.Trainer, data.Tokenizer, data.Corpus]:
    """The corpus, the tokenizer and a trainer with its model; on disk, the run folder."""
    corpus = data.load_corpus(options.data, seed=0)
    digest = hashlib.sha256((corpus.train + "\0" + corpus.val).encode()).hexdigest()
    tokenizer: data.Tokenizer
    if options.resume is not None:
        if read_config(run)["data_sha256"] != digest:
            raise UsageError(f"{options.data}: the text is not the one that {run} was trained on")
        tokenizer = data.load_tokenizer(run / "tokenizer.json")
    elif (run / "ckpt" / "latest").exists():
        raise UsageError(f"{run} holds a trained run: go on with --resume {run}, or choose another --out")
    elif options.tokenizer == "char":
        tokenizer = data.CharTokenizer.train(corpus.train + corpus.val)
    else:
        tokenizer = data.ByteBPETokenizer.train(corpus.train, options.vocab_size)

    train, val = tokenizer.encode_array(corpus.train), tokenizer.encode_array(corpus.val)
    block, batch = options.block_size, options.batch_size
    data.check_length(train, block, f"{corpus.name}: the training text")
    data.check_length(val, block, f"{corpus.name}: the validation text")
    starts = val_starts = None
    floor = None
    val_batches = None
    if corpus.sentence_starts:
        newline = tokenizer.encode("\n")[0]
        starts, val_starts = data.sentence_starts(train, newline), data.sentence_starts(val, newline)
        try:
            val_batches = data.sentence_windows(val, newline, block, batch)
            floor = corpus.floor and corpus.floor * len(corpus.val) / len(val)  # per token
        except data.DataError as error:
            print(f"note: {error}; validation takes windows instead, and the floor does not apply")
    if val_batches is None:
        val_batches = data.eval_batches(val, block, batch, options.eval_batches, val_starts)
    batches = data.Batches(train, block, batch, seed=options.seed, starts=starts)

    try:
        gpt = models.GPTConfig(
            vocab_size=tokenizer.vocab_size,
            block_size=block,
            n_layer=options.n_layer,
            n_head=options.n_head,
            n_embd=options.n_embd,
            dropout=options.dropout,
            bias=not options.no_bias,
            activation=options.activation,
            norm=options.norm,
            placement=options.placement,
            position=None if options.position == "none" else options.position,
        )
        config = training.TrainConfig(
            steps=options.steps,
            lr=options.lr,
            min_lr=options.min_lr,
            warmup=options.warmup,
            beta2=options.beta2,
            weight_decay=options.weight_decay,
            grad_clip=options.grad_clip,
            accumulate=options.accumulate,
            eval_every=options.eval_every,
            capture=not options.no_capture,
        )
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None
    if options.threads is not None:
        tg.set_num_threads(options.threads)
    tg.manual_seed(options.seed)
    model = models.GPT(gpt)
    trainer = training.Trainer(model, batches, config, val_batches=val_batches, out=run, floor=floor)
    if options.resume is None:
        run.mkdir(parents=True, exist_ok=True)
        tokenizer.save(run / "tokenizer.json")
        settings = {k: v for k, v in vars(options).items() if k not in NOT_SETTINGS}
        about = {
            "model": gpt.to_dict(),
            "options": settings,
            "data_sha256": digest,
            "sentence_starts": corpus.sentence_starts,
            "floor": floor,
            "version": tg.__version__,
        }
        beside = run / ".config.json.tmp"
        beside.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(beside, run / "config.json")
    elif (run / "ckpt" / "latest").exists():
        print(f"going on after step {trainer.resume()} of {options.steps}")
    else:
        print("no checkpoint was written yet: starting again")
    print(
        f"{corpus.name}: {len(train):,} tokens to train on, {len(val):,} to judge by, vocabulary {tokenizer.vocab_size}"
    )
    print(
        f"GPT with {model.num_parameters():,} parameters; {tg.get_num_threads()} threads; run folder {run}", flush=True
    )
    return trainer, tokenizer, corpus


def show_sample(trainer: training.Trainer, tokenizer: data.Tokenizer, corpus: data.Corpus) -> None:
    """A text from the trained model."""
    first = tokenizer.encode("\n")[0] if corpus.sentence_starts or "\n" in corpus.train else 0
    ids = models.generate(trainer.model, np.array([first]), 160, temperature=0.8, seed=0).numpy()[1:]
    print(f"\nA sample at temperature 0.8:\n{tokenizer.decode(ids).strip()}")


def main(argv: list[str] | None = None) -> int:
    """Run it; return the exit status."""
    prog = Path(sys.argv[0]).name
    run = None
    try:
        options, run = parse(argv)
        trainer, tokenizer, corpus = prepare(options, run)
        if trainer.step >= options.steps:
            print(f"{run}: all {options.steps} steps are done already")
            return 0
        trainer.train(options.stop_at)
    except KeyboardInterrupt:
        print(f"\nstopped; the last checkpoint is kept. Go on with: python examples/train_gpt.py --resume {run}")
        return 130
    except (UsageError, data.DataError, training.CheckpointError, training.TrainingError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 1 if isinstance(error, training.TrainingError) else 2
    except (OSError, ImportError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 1
    if trainer.step < options.steps:
        print(f"stopped at step {trainer.step}; go on with: python examples/train_gpt.py --resume {run}")
        return 0
    show_sample(trainer, tokenizer, corpus)
    if trainer.floor and trainer.val_loss is not None:
        above = 100 * (trainer.val_loss / trainer.floor - 1)
        print(f"\nvalidation loss {trainer.val_loss:.4f}, floor {trainer.floor:.4f}: {above:.1f} % above the floor")
    elif trainer.val_loss is not None:
        print(f"\nvalidation loss {trainer.val_loss:.4f}")
    print(f"{trainer.elapsed:.0f} s; loss curve: {run / 'loss.png'}; numbers: {run / 'metrics.jsonl'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
