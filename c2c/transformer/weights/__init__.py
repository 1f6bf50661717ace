"""Weights of checkpoints: formats, layout and reading."""
