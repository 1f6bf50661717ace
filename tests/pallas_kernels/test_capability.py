"""Backends are chosen by what the device has, and a refusal says what is missing."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

import pallas_kernels as pk
from pallas_kernels.capability import parse_compute_capability

H200 = pk.Device(
    platform="gpu",
    kind="NVIDIA H200",
    compute_capability=(9, 0),
    memory_kinds=frozenset({"device", "pinned_host"}),
)
CPU = pk.Device(
    platform="cpu",
    kind="cpu",
    compute_capability=None,
    memory_kinds=frozenset({"device", "pinned_host"}),
)


@pytest.mark.parametrize(
    ("device", "backend", "other", "said"),
    [(H200, "sm90", "interpret", "NVIDIA H200"), (CPU, "interpret", "sm90", "NVIDIA GPU")],
)
def test_a_device_runs_one_backend_and_says_why_not_the_other(
    device: Any, backend: str, other: str, said: str
) -> None:
    lacks = pk.capabilities(device)
    assert lacks[backend] == lacks["reference"] == ""
    assert said in lacks[other]


@pytest.mark.parametrize(
    ("kind", "capability"), [("NVIDIA A100", (8, 0)), ("NVIDIA B200", (10, 0)), ("AMD", None)]
)
def test_sm90_is_refused_on_every_other_architecture(
    kind: str, capability: tuple[int, int] | None
) -> None:
    other = replace(H200, kind=kind, compute_capability=capability)
    reason = pk.missing("sm90", other)
    assert kind in reason
    assert "9.0" in reason


def test_sm90_needs_pinned_host_memory() -> None:
    without = replace(H200, memory_kinds=frozenset({"device"}))
    assert "pinned_host" in pk.missing("sm90", without)


@pytest.mark.parametrize("backend", ["sm90", "interpret"])
def test_broken_install_is_named_not_hidden(backend: str) -> None:
    def broken(name: str) -> object:
        raise ImportError("libfoo.so.3 not found")

    reason = pk.missing(backend, H200, load=broken)  # type: ignore[arg-type]
    assert "libfoo.so.3 not found" in reason
    assert "mosaic_gpu" in reason
    assert pk.missing("reference", H200, load=broken) == ""


def test_require_names_backend_reason_and_what_there_is() -> None:
    with pytest.raises(pk.KernelUnavailable, match=r"sm90.*NVIDIA GPU.*interpret, reference") as e:
        pk.require("sm90", CPU)
    assert isinstance(e.value, NotImplementedError)
    pk.require("sm90", H200)


def test_unknown_backend_lists_the_known_ones() -> None:
    unchecked = inspect.unwrap(pk.missing)  # as in production: without the tests' type checks
    with pytest.raises(ValueError, match="sm90, interpret, reference"):
        unchecked("sm80", CPU)


def test_present_device_runs_the_reference() -> None:
    here = pk.device()
    pk.require("reference", here)
    assert here.platform in {"cpu", "gpu", "tpu"}
    assert (here.compute_capability is None) or here.platform == "gpu"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("9.0", (9, 0)), ("12.1", (12, 1)), (None, None), ("", None), ("gfx942", None), ("9", None)],
)
def test_compute_capability(text: str | None, expected: tuple[int, int] | None) -> None:
    assert parse_compute_capability(text) == expected


def test_import_touches_no_device() -> None:
    code = (
        "import sys, pallas_kernels\n"
        "xb = sys.modules.get('jax._src.xla_bridge')\n"
        "assert xb is None or not xb.backends_are_initialized()\n"
        "pallas_kernels.device()\n"  # and the same question, asked so that it can fail:
        "assert sys.modules['jax._src.xla_bridge'].backends_are_initialized()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
