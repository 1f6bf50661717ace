"""Compilation of the event loop by Numba; policies and rules are above this package."""
