"""Counts of attention against masks that are written out."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from c2c.cost import attention_pairs, chunk_kv_tokens, decode_kv_tokens


@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 30))
def test_chunk_counts_equal_the_mask(offset: int, chunk: int, window: int) -> None:
    query = np.arange(offset, offset + chunk)[:, None]
    key = np.arange(offset + chunk)[None, :]
    mask = key <= query
    if window:
        mask &= key > query - window
    assert attention_pairs(offset, chunk, window) == mask.sum()
    assert chunk_kv_tokens(offset, chunk, window) == mask.any(axis=0).sum()


@given(st.integers(1, 60), st.integers(0, 30))
def test_decode_reads_what_one_query_sees(length: int, window: int) -> None:
    assert decode_kv_tokens(length, window) == attention_pairs(length - 1, 1, window)
