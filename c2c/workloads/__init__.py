"""Requests: trace readers, synthetic generators, composition and trace statistics."""

from c2c.workloads.blocks import RequestBlock, Workload, concatenate

__all__ = ["RequestBlock", "Workload", "concatenate"]
