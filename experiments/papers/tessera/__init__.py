"""Tessera: one model's kernels over unlike GPUs."""
