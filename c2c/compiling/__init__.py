"""Numba's compilation of the event loop, each thing once and nothing that is not run.

`compilers` is the way in: options for `numba.njit`.
"""
