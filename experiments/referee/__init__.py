"""Simulators of LLM serving on the same requests: speed, agreement, refusals."""
