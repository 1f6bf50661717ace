"""Weights of checkpoints: what there is, where it goes, and how it is read."""
