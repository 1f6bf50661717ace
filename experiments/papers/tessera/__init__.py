"""Tessera: kernels of one model over GPUs of different types."""
