"""Comparison of the cost model with public measurements."""
