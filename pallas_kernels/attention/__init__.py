"""Attention for serving: prefill of arrays or pages, and decode from pages."""

from pallas_kernels.attention.api import (
    decode_attention,
    paged_prefill_attention,
    prefill_attention,
)
from pallas_kernels.attention.config import DecodeConfig, PrefillConfig
from pallas_kernels.attention.specs import Decode, Prefill

__all__ = [
    "Decode",
    "DecodeConfig",
    "Prefill",
    "PrefillConfig",
    "decode_attention",
    "paged_prefill_attention",
    "prefill_attention",
]
