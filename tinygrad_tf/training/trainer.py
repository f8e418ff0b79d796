"""The training loop. It knows a model by its interface only, so that models of one's own train as ours do."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinygrad_tf import optim, rng
from tinygrad_tf.capture import capture
from tinygrad_tf.training import checkpoints
from tinygrad_tf.training.checkpoints import CheckpointError
from tinygrad_tf.training.metrics import Metrics, plot_metrics
from tinygrad_tf.training.progress import Progress, Silent
from tinygrad_tf.training.steps import Batch, accumulate_gradients, count_tokens, evaluate, loss_and_gradients


class TrainingError(RuntimeError):
    """The training cannot go on; the message is one line for the person who started it."""


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Arguments:
        steps: how many steps, and where the schedule ends.
        lr, min_lr, warmup, schedule: see `optim.cosine`; schedule is "cosine", "linear" or "constant".
        beta1, beta2, eps, weight_decay: of AdamW.
        grad_clip: the bound of the gradient's norm; 0 for none.
        accumulate: batches per step, weighted by their tokens.
        eval_every: steps between evaluations, each of which is followed by a checkpoint.
        log_every: steps between lines in metrics.jsonl.
        keep: how many checkpoints stay.
        capture: whether forward and backward are captured (`tg.capture`): the same numbers, sooner. Switch it off for a model whose
            loss does more than compute.

    Raises ValueError for numbers out of range.

    Example:
        >>> TrainConfig(steps=100, warmup=200)
        Traceback (most recent call last):
        ValueError: cosine: warmup must be at most steps, got a warm-up of 200 in 100 steps
    """

    steps: int = 1000
    lr: float = 1e-3
    min_lr: float = 1e-4
    warmup: int = 0
    schedule: str = "cosine"
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    accumulate: int = 1
    eval_every: int = 250
    log_every: int = 10
    keep: int = 3
    capture: bool = True

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "eval_every", "log_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"TrainConfig: {name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "min_lr", "warmup", "eps", "weight_decay", "grad_clip"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"TrainConfig: {name} must be at least 0, got {getattr(self, name)}")
        if self.min_lr > self.lr and self.schedule != "constant":
            raise ValueError(f"TrainConfig: min_lr must be at most lr, got {self.min_lr} and {self.lr}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"TrainConfig: {name} must be at least 0 and below 1, got {getattr(self, name)}")
        self.learning_rate()

    def learning_rate(self) -> optim.Schedule:
        """The schedule: number of steps taken -> rate of the next."""
        if self.schedule == "cosine":
            return optim.cosine(self.lr, self.steps, self.warmup, self.min_lr)
        if self.schedule == "linear":
            return optim.linear(self.lr, self.steps, self.warmup, self.min_lr)
        if self.schedule == "constant":
            return optim.constant(self.lr, self.warmup)
        raise ValueError(f"TrainConfig: schedule must be 'cosine', 'linear' or 'constant', got {self.schedule!r}")


class Trainer:
    """Trains a model with AdamW, and keeps a run folder from which the training can go on bit for bit.

    Arguments:
        model: a Module with `loss(ids, targets)`, and with `param_groups(weight_decay)` or else one group of all
            parameters that are matrices, which decay, and one of the others.
        batches: has `next()`, `state_dict()` and `load_state_dict(state)`, as `data.Batches`.
        config: a TrainConfig.
        val_batches: pairs (ids, targets) to be judged by; None for no evaluation.
        out: the run folder, for metrics.jsonl, loss.png and ckpt/; None to write nothing.
        floor: the lowest loss per token that can be expected, where it is known: shown beside the loss.
        progress: whether to show a bar or lines (default True).

    Raises ValueError if `out` already has a checkpoint and `resume()` is not called before `train()`.

    Example:
        >>> import numpy as np, tinygrad_tf as tg
        >>> from tinygrad_tf import data, nn
        >>> class Bigram(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.scores = nn.Embedding(4, 4)
        ...     def loss(self, ids, targets):
        ...         return nn.functional.cross_entropy(self.scores(ids).reshape(-1, 4), targets.reshape(-1))
        >>> batches = data.Batches(np.arange(400) % 4, block_size=8, batch_size=8)
        >>> trainer = Trainer(Bigram(), batches, TrainConfig(steps=60, lr=0.3), progress=False)
        >>> trainer.train()
        >>> trainer.loss < 0.1
        True
    """

    def __init__(
        self,
        model: Any,
        batches: Any,
        config: TrainConfig,
        *,
        val_batches: Sequence[Batch] | None = None,
        out: str | os.PathLike[str] | None = None,
        floor: float | None = None,
        progress: bool = True,
    ) -> None:
        self.model, self.batches, self.config = model, batches, config
        self.val_batches = val_batches
        self.out = None if out is None else Path(out)
        self.floor, self.progress = floor, progress
        self.learning_rate = config.learning_rate()
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.optimizer = optim.AdamW(self._groups(), config.lr, (config.beta1, config.beta2), config.eps)
        compute = loss_and_gradients(model)
        self._compute = capture(compute, warn=False) if config.capture else compute
        self.step = 0
        self.loss = math.nan
        self.val_loss: float | None = None
        self.elapsed = 0.0
        self.metrics: Metrics | None = None
        self._saved: Path | None = None
        self._plotted = time.perf_counter()

    def _groups(self) -> list[dict[str, Any]]:
        decay = self.config.weight_decay
        if hasattr(self.model, "param_groups"):
            groups: list[dict[str, Any]] = [dict(g) for g in self.model.param_groups(decay)]
        else:
            parameters = list(self.model.parameters())
            groups = [
                {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": decay},
                {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
            ]
        for group in groups:
            group["params"] = [p if isinstance(p, tuple) else (self.names.get(id(p)), p) for p in group["params"]]
        return groups

    # -- one step ------------------------------------------------------------------------------------------------------

    def train_step(self) -> float:
        """Draw the batches of one step, and change the parameters; return the loss before the change.

        Raises TrainingError, before anything is changed, if the loss or the gradient is NaN or infinite.
        """
        drawn = [self.batches.next() for _ in range(self.config.accumulate)]
        self._tokens = sum(count_tokens(targets) for _, targets in drawn)
        self.optimizer.zero_grad()
        loss = accumulate_gradients(self.model, drawn, self._compute)
        if not math.isfinite(loss):
            raise TrainingError(f"step {self.step + 1}: the loss is {loss}; {self._advice()}")
        norm = optim.clip_grad_norm_(self.names_to_parameters(), self.config.grad_clip or math.inf)
        if not math.isfinite(norm):
            raise TrainingError(f"step {self.step + 1}: the norm of the gradient is {norm}; {self._advice()}")
        self.lr = self.learning_rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        self.optimizer.step()
        self.step += 1
        self.loss = loss
        return loss

    def names_to_parameters(self) -> list[Any]:
        """All parameters that are trained, each once."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _advice(self) -> str:
        kept = f"; the last checkpoint, {self._saved}, is kept" if self._saved is not None else ""
        return f"try a lower lr (now {self.config.lr}) or a longer warm-up{kept}"

    # -- all steps -----------------------------------------------------------------------------------------------------

    def train(self, until: int | None = None) -> None:
        """Train up to `config.steps`, or to step `until` of them; evaluate, log and save on the way and at the end.

        Raises TrainingError if the loss is no longer finite. After an exception, KeyboardInterrupt included, the last
        checkpoint is as it was.
        """
        config = self.config
        last = config.steps if until is None else min(until, config.steps)
        self._open()
        assert self.metrics is not None
        self.model.train()
        begin = time.perf_counter() - self.elapsed
        tokens, seconds, tokens_per_s = 0, 0.0, 0.0
        with Progress(last, self.step) if self.progress else Silent() as progress:
            try:
                while self.step < last:
                    started = time.perf_counter()
                    self.train_step()
                    tokens += self._tokens
                    seconds += time.perf_counter() - started
                    evaluating = self.step % config.eval_every == 0 or self.step == last
                    tokens_per_s = tokens / max(seconds, 1e-9)
                    progress.update(self.step, self.loss, tokens_per_s)
                    if evaluating and self.val_batches is not None:
                        self.val_loss = evaluate(self.model, self.val_batches)
                        progress.line(self._summary())
                    if evaluating or self.step % config.log_every == 0 or self.step == 1:
                        self.elapsed = time.perf_counter() - begin
                        self._log(tokens_per_s, self.val_loss if evaluating else None)
                        tokens, seconds = 0, 0.0
                    if evaluating:
                        self.save()
            finally:
                self._plot(final=True)

    def _open(self) -> None:
        if self.metrics is not None:
            return
        if self.out is not None:
            if self._saved is None and (self.out / "ckpt" / checkpoints.LATEST).exists():
                raise ValueError(f"{self.out} has a checkpoint already: resume it, or train into another folder")
            self.out.mkdir(parents=True, exist_ok=True)
            checkpoints.clean(self.out)
        self.metrics = Metrics(None if self.out is None else self.out / "metrics.jsonl", until=self.step)

    def _summary(self) -> str:
        text = (
            f"step {self.step}/{self.config.steps}  training loss {self.loss:.4f}  validation loss {self.val_loss:.4f}"
        )
        if self.floor and self.val_loss is not None:
            text += f"  floor {self.floor:.4f} ({100 * (self.val_loss / self.floor - 1):+.1f} %)"
        return text

    def _log(self, tokens_per_s: float, val_loss: float | None) -> None:
        assert self.metrics is not None
        row = {
            "step": self.step,
            "loss": self.loss,
            "val_loss": val_loss,
            "lr": float(self.lr),
            "tokens_per_s": round(tokens_per_s, 1),
            "elapsed": round(self.elapsed, 3),
        }
        self.metrics.add(row)

    def _plot(self, final: bool = False) -> None:
        """Draw loss.png at the end, and on the way at most every half minute."""
        now = time.perf_counter()
        if (
            self.out is None
            or self.metrics is None
            or not self.metrics.rows
            or (not final and now - self._plotted < 30)
        ):
            return
        with contextlib.suppress(ImportError):  # a training does not fail for want of a picture
            plot_metrics(self.metrics.rows, self.out / "loss.png", self.floor, self.out.name)
        self._plotted = now

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save(self) -> Path | None:
        """Write the checkpoint of this step into the run folder, if there is one."""
        if self.out is None:
            return None
        if self._saved == checkpoints.checkpoint_folder(self.out, self.step):
            return self._saved
        state = self.optimizer.state_dict()
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        counts: dict[str, dict[str, int]] = {}
        for position, entries in state.pop("state").items():
            counts[str(position)] = {}
            for key, value in entries.items():
                if isinstance(value, np.ndarray):
                    arrays[f"{key}.{state['names'][position] or position}"] = value
                else:
                    counts[str(position)][key] = value
        self._saved = checkpoints.save_checkpoint(
            self.out,
            self.step,
            checkpoints.unique_tensors(self.model),
            arrays,
            {
                "loss": self.loss,
                "val_loss": self.val_loss,
                "elapsed": self.elapsed,
                "config": asdict(self.config),
                "optimizer": state,
                "optimizer_counts": counts,
                "batches": self.batches.state_dict(),
                "rng": rng.get_rng_state(),
            },
            self.config.keep,
        )
        self._plot()
        return self._saved

    def resume(self) -> int:
        """Go on from the latest checkpoint in the run folder: the next step is the one that would have come.

        Weights, moments, step, batches, dropout and the random state are as they were; lines of metrics.jsonl that
        were written after the checkpoint are dropped. Rates follow this trainer's config, which
        should be that of the run. Returns the step.

        Raises CheckpointError, naming the file, if the checkpoint is missing, damaged or of another model.
        """
        if self.out is None:
            raise ValueError("Trainer.resume: there is no run folder (out) to resume from")
        folder = checkpoints.latest_checkpoint(self.out)
        model, moments, state = checkpoints.load_checkpoint(folder)
        try:
            saved = dict(state["optimizer"])
            saved["state"] = {int(i): dict(counts) for i, counts in state["optimizer_counts"].items()}
            by_name = {str(name or i): i for i, name in enumerate(saved["names"])}
            for key, array in moments.items():
                moment, _, name = key.partition(".")
                saved["state"][by_name[name]][moment] = array
            settings = [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]
            self.optimizer.load_state_dict(saved)
            for group, own in zip(self.optimizer.param_groups, settings, strict=True):
                group.update(own)
            checkpoints.restore_model(self.model, model, folder)
            self.batches.load_state_dict(state["batches"])
            rng.set_rng_state(state["rng"])
            self.step, self.loss, self.elapsed = int(state["step"]), float(state["loss"]), float(state["elapsed"])
            self.val_loss = state["val_loss"]
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CheckpointError(f"{folder / checkpoints.STATE}: does not fit this run: {error}") from None
        self._saved = folder
        return self.step
