"""A forward pass with weights in host memory, compiled for an H200 where there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.compiler import needs_compiler, run

pytestmark = [pytest.mark.slow, needs_compiler]

# A scan: one layer's kernels, however many layers. Rows of the embedding, qkv, o, attention,
# gate_up, down; the head.
KERNELS = 7


@pytest.mark.parametrize(
    ("case", "kernels"),
    [
        ({"rows": 8, "chunk": 1}, KERNELS),
        ({"rows": 1, "chunk": 512, "tied": True}, KERNELS),
        pytest.param({"rows": 8, "chunk": 1, "experts": 8}, KERNELS, marks=pytest.mark.soak),
        ({"rows": 8, "chunk": 1, "experts": 8, "quantize": "int8"}, KERNELS),
        # Rows of an embedding in few bits, and of its scales.
        pytest.param(
            {"rows": 8, "chunk": 1, "tied": True, "quantize": "int4"},
            KERNELS + 1,
            marks=pytest.mark.soak,
        ),
    ],
    ids=["decode", "chunk-tied", "moe", "moe-int8", "int4-tied"],
)
def test_weights_are_read_by_kernels_only(case: dict[str, Any], kernels: int) -> None:
    (report,) = run("tests.transformer.compile_ahead", json.dumps(case))
    assert report["host_copies"] == []
    assert report["cache_copies"] == []
    assert report["host_argument_bytes"] == report["weight_bytes"] > 0
    assert report["spilled_bytes"] == 0
    assert not report["wgmma_serialised"]
    assert report["kernels"] == kernels
