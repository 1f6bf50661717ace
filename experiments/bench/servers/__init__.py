"""Comparison of this engine with other servers of many models: one trace, the same weights."""
