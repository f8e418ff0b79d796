"""Texts, tokenizers, and windows of tokens: what a language model is trained on. Needs numpy only."""

from tinygrad_tf.data.batches import Batches, eval_batches, sentence_starts, sentence_windows
from tinygrad_tf.data.bpe import learn_merges
from tinygrad_tf.data.corpora import check_length, load_corpus, python_docs, read_text
from tinygrad_tf.data.corpus import Corpus, DataError
from tinygrad_tf.data.splitter import split_gpt2
from tinygrad_tf.data.tokenizers import ByteBPETokenizer, CharTokenizer, StreamingDecoder, Tokenizer, load_tokenizer
from tinygrad_tf.data.toy_world import (
    continuations,
    entropy_per_character,
    held_out_mass,
    log_probability,
    next_character_probabilities,
    sentences,
    toy_world,
)

__all__ = [
    "Batches",
    "ByteBPETokenizer",
    "CharTokenizer",
    "Corpus",
    "DataError",
    "StreamingDecoder",
    "Tokenizer",
    "check_length",
    "continuations",
    "entropy_per_character",
    "eval_batches",
    "held_out_mass",
    "learn_merges",
    "load_corpus",
    "load_tokenizer",
    "log_probability",
    "next_character_probabilities",
    "python_docs",
    "read_text",
    "sentence_starts",
    "sentence_windows",
    "sentences",
    "split_gpt2",
    "toy_world",
]
