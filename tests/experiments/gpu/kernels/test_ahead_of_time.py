"""The benchmark's own kernels, and profiled ones, compile for an H200 and are as meant."""

from __future__ import annotations

import pytest

from tests.compiler import needs_compiler, run


@pytest.mark.slow
@needs_compiler
def test_probes_compile_for_an_h200() -> None:
    found = run("tests.experiments.gpu.kernels.compile_probes", limit_s=300.0)
    assert len(found) == 12
    assert [f for f in found if f["wrong"]] == []
