"""Compilation of the event loop by Numba; policies and rules are above this package.

Without Numba: `decision` makes decision points and marks functions for compilation, `entries` and
`linked` make the tables by which policies are called, `machine_code` finds an entry's machine code
on disk, and `kept` reads it. `making` imports Numba if machine code is missing: `overloads`
registers our functions with Numba, `calls` and `reading` are calls and reads at addresses,
`compilers` has the options of `numba.njit`.
"""
