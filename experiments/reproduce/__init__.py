"""Reproduce the papers' figures and compare with their numbers; see `__main__`."""
