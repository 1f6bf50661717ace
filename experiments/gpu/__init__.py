"""Measurements of a GPU, its link to host memory and our kernels: `make gpu`.

`cases` is the plan of one call, `runner` runs it in child processes, `verdicts` judges the rows.
See `docs/gpu.md`.
"""
