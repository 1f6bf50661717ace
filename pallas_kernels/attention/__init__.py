"""Attention for serving: prefill, paged decode, and partial results that merge exactly."""

from pallas_kernels.attention.api import (
    decode_attention,
    paged_prefill_attention,
    partial_decode,
    partial_prefill,
    prefill_attention,
)
from pallas_kernels.attention.config import DecodeConfig, PrefillConfig
from pallas_kernels.attention.partial import Partial, merge_partial
from pallas_kernels.attention.specs import Decode, Prefill

__all__ = [
    "Decode",
    "DecodeConfig",
    "Partial",
    "Prefill",
    "PrefillConfig",
    "decode_attention",
    "merge_partial",
    "paged_prefill_attention",
    "partial_decode",
    "partial_prefill",
    "prefill_attention",
]
