"""Compilation of the event loop by Numba."""
