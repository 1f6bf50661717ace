"""Mechanisms of other systems."""
