"""What changes parameters: SGD, Adam, AdamW, learning-rate schedules, clipping of gradients. Needs numpy only."""

from tinygrad_tf.optim.adam import Adam, AdamW
from tinygrad_tf.optim.clip import clip_grad_norm_
from tinygrad_tf.optim.optimizer import Optimizer
from tinygrad_tf.optim.schedules import Schedule, constant, cosine, linear
from tinygrad_tf.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "Schedule", "clip_grad_norm_", "constant", "cosine", "linear"]
