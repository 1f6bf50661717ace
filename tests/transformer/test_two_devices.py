"""A model on another device, and on two devices at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import tiered
from tests.transformer.random_checkpoints import config_of, tensors_of, write


@pytest.mark.slow
@pytest.mark.parametrize("family", tiered(["llama", "qwen2", "qwen3_moe"]))
def test_stored_executables_and_layers_run_on_any_device(
    family: str, tmp_path: Path, repository: Path
) -> None:
    config = config_of(family)
    checkpoint = write(tmp_path / family, config, tensors_of(config))
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-m", "tests.transformer.two_devices", checkpoint, tmp_path / "store"],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=repository,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    first, second, both = map(json.loads, done.stdout.splitlines())
    assert (first["on"], second["on"]) == (["cpu:0"], ["cpu:1"])
    assert first["compiled"] > 0
    assert second["compiled"] == 0  # loaded from what the first stored
    assert len(set(first["tokens"])) > 3
    assert first["tokens"] == second["tokens"] == both["tokens"]
