"""Comparison of the cost model with public measurements: `c2c bench measured`."""
