"""The GPU measurement: its plumbing runs on any device, its refusal on a machine without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import gpu


def has_gpu() -> bool:
    return any(d.platform == "gpu" for d in jax.devices())


@pytest.mark.skipif(has_gpu(), reason="a GPU is here; this is about machines without one")
def test_without_a_gpu_it_says_so_writes_nothing_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main(["--out", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "sees no GPU" in printed.err
    assert "cpu" in printed.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(has_gpu(), reason="pretends that the CPU is the GPU")
def test_writes_every_measurement_with_its_provenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "find_gpu", lambda: jax.devices()[0])
    assert gpu.main(["--quick", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.rglob("*.json")
    assert path.relative_to(tmp_path) == Path(
        gpu.folder_name(jax.devices()[0].device_kind), "link.json"
    )
    written = json.loads(path.read_text("utf-8"))
    assert written["quick"] is True
    assert {row["copy"] for row in written["link"]} == {
        "pinned_to_device",
        "pageable_to_device",
        "device_to_pinned",
    }
    for row in written["link"]:
        assert 0 < row["gbps"]["worst"] <= row["gbps"]["median"] <= row["gbps"]["best"]
    assert written["provenance"]["versions"]["jax"] == jax.__version__
    assert written["provenance"]["device"] == jax.devices()[0].device_kind
    assert "TFLOP/s" in capsys.readouterr().out


def test_rate_is_amount_over_time() -> None:
    found = gpu.rate(6e9, [1.0, 2.0, 3.0])
    assert (found["best"], found["median"], found["worst"]) == (6.0, 3.0, 2.0)


def test_the_sweep_makes_every_pass_and_is_not_folded_into_one() -> None:
    x = jnp.arange(1000, dtype=jnp.uint32)
    sweep = gpu.sweep_program(16)
    np.testing.assert_array_equal(sweep(x), np.arange(1000) + sum(range(16)))
    assert " while(" in jax.jit(sweep).lower(x).compile().as_text()


def test_the_chain_multiplies_as_often_as_it_says_and_keeps_its_size() -> None:
    n, products = 64, 8
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.standard_normal((n, n)), jnp.bfloat16)
    w = jnp.asarray(draw.standard_normal((n, n)) / np.sqrt(n), jnp.bfloat16)
    chain = gpu.chain_program(products)
    expected = np.asarray(x, np.float64) @ np.linalg.matrix_power(
        np.asarray(w, np.float64), products
    )
    got = np.asarray(chain(x, w), np.float64)
    assert np.linalg.norm(got - expected) < 0.05 * np.linalg.norm(expected)
    assert 0.05 < got.std() < 20
    assert " while(" in jax.jit(chain).lower(x, w).compile().as_text()


@pytest.mark.parametrize(
    ("kind", "folder"),
    [("NVIDIA H200", "nvidia-h200"), ("NVIDIA GH200 480GB", "nvidia-gh200-480gb"), ("cpu", "cpu")],
)
def test_folder_name(kind: str, folder: str) -> None:
    assert gpu.folder_name(kind) == folder


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "link.json"
    gpu.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        gpu.write_json(path, {"a": object()})
    assert json.loads(path.read_text("utf-8")) == {"a": 1}
    gpu.write_json(path, {"a": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["link.json"]
    assert json.loads(path.read_text("utf-8")) == {"a": 2}


def test_absent_program_is_no_answer() -> None:
    assert gpu.output_of(["no-such-program-here"]) is None
    assert gpu.output_of(["git", "no-such-verb"]) is None
