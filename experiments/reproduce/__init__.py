"""Reproduction of the papers' figures, and comparison with their numbers; see `command`."""
