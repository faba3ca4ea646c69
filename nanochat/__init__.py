"""nanochat: train a language model end to end, one concept per file."""
