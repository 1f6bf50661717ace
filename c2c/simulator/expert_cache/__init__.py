"""Experts of mixtures in HBM."""
