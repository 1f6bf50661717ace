"""Comparison of the cost model with public measurements: `python -m experiments.bench.measured`."""
