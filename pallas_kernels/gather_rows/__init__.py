"""Embedding lookup over the link: rows of a table in host memory, fetched by index."""

from pallas_kernels.gather_rows.api import DTYPES, GatherRows, gather_rows

__all__ = ["DTYPES", "GatherRows", "gather_rows"]
