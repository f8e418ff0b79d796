"""Models, made of layers: `from tinygrad_tf import models`.

`gpt` is the language model and its configuration; `generation` continues a text with it.
"""

if __name__ == "models":
    raise ImportError("these models are installed as tinygrad_tf.models: write `from tinygrad_tf import models`")

from .generation import generate, generate_stream, next_probabilities, sample_next
from .gpt import GPT, GPTConfig

__all__ = ["GPT", "GPTConfig", "generate", "generate_stream", "next_probabilities", "sample_next"]
