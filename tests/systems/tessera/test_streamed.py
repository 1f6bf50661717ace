"""Kernels over two slices of one GPU stream each weight once."""

from __future__ import annotations

import pytest

from c2c.cost.kernel_graph import Batch, StepKernel, step_kernels
from c2c.errors import SettingError
from c2c.hardware import link_gbps, load_platform, slices
from c2c.models import load_spec
from c2c.systems.tessera import streamed_ways


def decode(rows: int) -> tuple[StepKernel, ...]:
    return step_kernels(load_spec("llama-3-3b"), Batch(rows=rows, chunk=1, context=1084))


def test_kernels_over_two_slices_stream_each_weight_once() -> None:
    platform = load_platform("gh200")
    parts = slices(platform, "3g_4x1g")[:2]
    link = link_gbps(platform.link, "measured")
    found = {way.name: way for way in streamed_ways(decode, 64, platform, parts, link)}
    weights = sum(k.weight_bytes for k in decode(64))
    assert found["large"].streamed_bytes == found["limit"].streamed_bytes == weights
    # each of two engines streams all but the embeddings of the other's rows
    assert found["apart"].streamed_bytes == pytest.approx(2 * weights, rel=0.01)
    assert sum(found["apart"].rows) == 64
    assert weights <= found["kernels"].streamed_bytes < 1.2 * weights
    for way in found.values():
        assert way.seconds >= way.streamed_bytes / (link * 1e9) * (1 - 1e-9)
    assert found["limit"].seconds <= found["kernels"].seconds < found["large"].seconds
    assert found["large"].seconds < found["small"].seconds
    with pytest.raises(SettingError, match="two slices"):
        streamed_ways(decode, 64, platform, parts[:1], link)
    with pytest.raises(SettingError, match="rows=1"):
        streamed_ways(decode, 1, platform, parts, link)
