"""Embedding lookup over the link."""

from pallas_kernels.gather_rows.api import gather_rows
from pallas_kernels.gather_rows.specs import DTYPES, GatherRows

__all__ = ["DTYPES", "GatherRows", "gather_rows"]
