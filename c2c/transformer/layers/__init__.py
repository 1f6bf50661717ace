"""Parameters, layers and KV cache as pure functions."""
