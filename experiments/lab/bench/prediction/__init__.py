"""Comparison of the live engine with its simulation."""
