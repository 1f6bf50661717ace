"""Hydra entry points and figures."""
