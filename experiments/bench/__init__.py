"""Benchmarks of our own code."""
