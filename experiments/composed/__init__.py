"""Mechanisms of several papers in one system: which go together, and what each is worth."""
