"""Embedding lookup over the link: rows of a table in host memory, fetched by index."""

from pallas_kernels.gather_rows.api import gather_rows
from pallas_kernels.gather_rows.specs import DTYPES, GatherRows

__all__ = ["DTYPES", "GatherRows", "gather_rows"]
