"""Mechanisms of several papers in one system: compatible sets, and the worth of each."""
