"""The training loop, evaluation, run folders and checkpoints. Files and pictures need the extra `train`."""

from tinygrad_tf.training.checkpoints import (
    CheckpointError,
    checkpoint_folder,
    latest_checkpoint,
    load_checkpoint,
    load_model,
    save_checkpoint,
)
from tinygrad_tf.training.metrics import Metrics, plot_metrics, read_metrics
from tinygrad_tf.training.steps import accumulate_gradients, evaluate, loss_and_gradients
from tinygrad_tf.training.trainer import TrainConfig, Trainer, TrainingError

__all__ = [
    "CheckpointError",
    "Metrics",
    "TrainConfig",
    "Trainer",
    "TrainingError",
    "accumulate_gradients",
    "checkpoint_folder",
    "evaluate",
    "latest_checkpoint",
    "load_checkpoint",
    "load_model",
    "loss_and_gradients",
    "plot_metrics",
    "read_metrics",
    "save_checkpoint",
]
