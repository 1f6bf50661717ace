"""Everything that exists so that Numba compiles the event loop; policies and rules are above.

`decision` makes decision points and lets functions be compiled, `entries` and `linked` call
policies at addresses, `machine_code` compiles entries of the loop and keeps them on disk,
`compilers` has the options of `numba.njit`.
"""
