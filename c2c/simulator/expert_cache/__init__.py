"""Experts of mixtures in HBM: what a step needs, misses and fetches."""
