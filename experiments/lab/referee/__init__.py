"""Comparison of LLM serving simulators on the same requests."""
