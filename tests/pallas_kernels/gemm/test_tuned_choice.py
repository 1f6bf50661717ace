"""Tuned results as `choice` and `machine_for` read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pallas_kernels import tuned_results
from pallas_kernels.gemm import MACHINES, Config, Gemm, choice, choose, explain, machine_for
from pallas_kernels.gemm.heuristics import KERNEL_SOURCES, tuning_key

H200 = MACHINES["NVIDIA H200"]


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tuned_results, "folders", lambda: (tmp_path,))
    return tmp_path


@pytest.fixture
def measured() -> Callable[..., None]:
    """Write results as the tuner would."""

    def write(gemm: Gemm, *times: tuple[Config, float, float], **machine: Any) -> None:
        entry = tuned_results.Entry(
            op="hybrid_gemm",
            key=tuning_key(gemm, H200.sm_count),
            source=tuned_results.source_hash(KERNEL_SOURCES),
            provenance={"jax": tuned_results.jax_version(), "date": "2026-01-01"},
            measurements=tuple(
                tuned_results.Measurement(config=asdict(config), alpha=alpha, time_s=time_s)
                for config, alpha, time_s in times
            ),
        )
        (folder,) = tuned_results.folders()
        path = folder / tuned_results.file_name(H200.device)
        tuned_results.write(
            path, tuned_results.Tuned(device=H200.device, entries=(entry,), machine=machine)
        )

    return write


UNLIKELY = Config(tm=128, tn=64, w_stages=3, cluster=1)
LIKELY = Config(cluster=2)


def test_measured_times_decide(measured: Callable[..., None]) -> None:
    gemm = Gemm(m=512, k=4096, n=16384)
    predicted = choice(gemm, H200)
    assert predicted.origin == "predicted"
    measured(gemm, (UNLIKELY, 0.25, 1e-3), (LIKELY, 1.0, 2e-3))
    found = choice(gemm, H200)
    assert (found.config, found.alpha, found.origin) == (UNLIKELY, 0.25, "measured")
    assert found.time_s == pytest.approx(1e-3)
    assert choose(gemm, H200, cluster=2) == LIKELY
    assert choice(gemm, H200, cluster=4).origin == "predicted"
    assert "hold none for this cluster" in explain(gemm, H200, cluster=4)
    assert "the fastest of 2 measured at M = 512 (2026-01-01)" in explain(gemm, H200)
    stacked = replace(gemm, layers=4)
    assert choose(stacked, H200) == UNLIKELY  # a layer takes as long as one matrix
    for other in (
        replace(gemm, k=4160),
        replace(gemm, out_dtype="float32"),
        replace(gemm, w_layout="nk"),
        replace(gemm, m=2048),
    ):
        assert choice(other, H200).origin == "predicted"
    assert choice(gemm, H200, sm_count=16).origin == "predicted"


def test_a_near_shape_is_scaled_by_the_model(measured: Callable[..., None]) -> None:
    there, here = Gemm(m=512, k=4096, n=16384), Gemm(m=768, k=4096, n=16384)
    # Both read W once at 512 rows; at 768 only the cluster of four still does.
    four = Config(cluster=4)
    measured(there, (LIKELY, 1.0, 2.40e-3), (four, 1.0, 2.45e-3))
    assert choose(there, H200, cluster=None) == LIKELY
    found = choice(here, H200)
    assert (found.config, found.origin) == (four, "measured")
    assert found.time_s == pytest.approx(2.45e-3, rel=0.01)
    assert "too far away" in explain(Gemm(m=2048, k=4096, n=16384), H200)


def test_measured_rates_replace_the_datasheet(measured: Callable[..., None]) -> None:
    gemm = Gemm(m=8, k=4096, n=16384)
    measured(gemm, (LIKELY, 1.0, 2e-3), link_gbps=31.0, resident=[[8, 14]], source="a probe")
    machine = machine_for("NVIDIA H200")
    assert machine.link_gbps == 31.0
    assert machine.clusters(8) == 14
    assert "measured: link_gbps, resident (a probe); else unmeasured" in machine.source
    assert machine_for("NVIDIA H200", measured=False) == H200
    assert machine_for("NVIDIA H200", sm_count=16).clusters(8) == 2


def test_stale_results_are_left_aside(
    measured: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gemm = Gemm(m=512, k=4096, n=16384)
    measured(gemm, (UNLIKELY, 0.25, 1e-3))
    monkeypatch.setattr(tuned_results, "source_hash", lambda files: "another")
    assert "1 stale results left aside" in explain(gemm, H200)
    assert choice(gemm, H200).origin == "predicted"
    monkeypatch.undo()
    monkeypatch.setattr(tuned_results, "jax_version", lambda: "9.9")
    assert choice(gemm, H200).origin == "predicted"
