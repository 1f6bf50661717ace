"""Tessera: kernels of one model over unlike GPUs."""
