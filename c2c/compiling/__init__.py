"""Everything that exists so that Numba compiles the event loop; policies and rules are above.

Without Numba: `decision` makes decision points and marks what is compiled, `entries` and `linked`
make the tables by which policies are called, `machine_code` finds an entry's machine code on disk,
and `kept` reads it. `making` imports Numba, when something is not there yet: `overloads` is what
Numba knows of our functions, `calls` and `reading` are its calls and reads at addresses,
`compilers` has the options of `numba.njit`.
"""
