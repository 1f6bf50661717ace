"""Parameters, layers and KV cache of a model, as pure functions."""
