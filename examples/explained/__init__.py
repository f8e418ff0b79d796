"""Claims about the Transformer block, each an experiment: `python -m examples.explained` lists them."""
