"""Benchmarks of this project's code."""
