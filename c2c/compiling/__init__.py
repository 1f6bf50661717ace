"""Numba's compilation of the event loop, each thing once and nothing that is not run.

`linking` is the way in: compilers for `numba.njit(pipeline_class=...)`. The other modules put
cheaper parts in place of Numba's own, and change nothing but how long compiling takes.
"""
