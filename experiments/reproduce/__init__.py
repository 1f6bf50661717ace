"""Reproduction of the papers' figures."""
