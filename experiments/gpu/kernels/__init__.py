"""Benchmark of the kernels on a GPU: bounds, open questions, the grid, rivals, contention."""
