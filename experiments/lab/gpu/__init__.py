"""Measurements of a GPU, its link to host memory and our kernels: `make gpu` (`docs/gpu.md`)."""
