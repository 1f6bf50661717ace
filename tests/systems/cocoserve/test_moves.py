"""Operations on a served model: the spread after each, live on four devices of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from c2c.errors import SettingError
from c2c.systems.cocoserve.live.spread import Spread
from c2c.systems.cocoserve.moves import after
from c2c.systems.cocoserve.operations import Operation
from tests.tiers import tiered
from tests.transformer.random_checkpoints import config_of, tensors_of, write

TWO_PATHS = Spread(((0,), (0, 1), (0, 1)), ((0, 0, 0), (0, 1, 1)))


@pytest.mark.parametrize(
    ("operation", "requests", "copies", "paths", "homes"),
    [
        (Operation(kind="replicate", layers=(0,), device=2), {8},
         ((0, 2), (0, 1), (0, 1)), ((0, 0, 0), (0, 1, 1), (2, 0, 0), (2, 1, 1)),
         {7: (0, 0, 0), 8: (2, 1, 1)}),
        (Operation(kind="migrate", layers=(0, 1), source=0, device=3), set(),
         ((3,), (3, 1), (0, 1)), ((3, 3, 0), (3, 1, 1)), {7: (3, 3, 0), 8: (3, 1, 1)}),
        (Operation(kind="evict", layers=(1, 2), source=1, device=0), set(),
         ((0,), (0,), (0,)), ((0, 0, 0),), {7: (0, 0, 0), 8: (0, 0, 0)}),
        (Operation(kind="evict", layers=(2,), source=0, device=1), set(),
         ((0,), (0, 1), (1,)), ((0, 0, 1), (0, 1, 1)), {7: (0, 0, 1), 8: (0, 1, 1)}),
        (Operation(kind="migrate", layers=(2,), device=1, with_kv=True), {7},
         TWO_PATHS.copies, TWO_PATHS.paths, {7: (0, 0, 1), 8: (0, 1, 1)}),
    ],
)  # fmt: skip
def test_an_operation_changes_copies_paths_and_homes(
    operation: Operation, requests: set[int], copies: object, paths: object, homes: object
) -> None:
    before = {7: (0, 0, 0), 8: (0, 1, 1)}
    found, there = after(operation, TWO_PATHS, before, requests=requests)
    assert (found.copies, found.paths, there) == (copies, paths, homes)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (Operation(kind="migrate", layers=(0,), device=1, module="kv"), "operation.module='kv'"),
        (Operation(kind="replicate", layers=(1,), device=1), "layers=1"),
        (Operation(kind="evict", layers=(0,), source=0, device=1), "layers=0"),
        (Operation(kind="replicate", layers=(3,), device=1), "layers=3"),
    ],
)
def test_operations_that_cannot_be_are_refused(operation: Operation, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        after(operation, TWO_PATHS, {})


FAMILIES = (
    *("mixed", "llama_biased", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"),
    *("gemma3_text", "glm4_moe", "deepseek_v3", "llama4_text"),
)
QUICK = ((FAMILIES[0], "reference"), ("llama", "hybrid"))


@pytest.mark.parametrize(
    ("family", "linear"),
    tiered(
        [*((family, "reference") for family in FAMILIES), ("llama", "hybrid"), ("llama", "staged")],
        *QUICK,
        slow=4,
    ),
)
def test_random_operations_on_four_devices_change_no_token_and_no_bit(
    family: str, linear: str, tmp_path: Path, repository: Path
) -> None:
    config = config_of(family)
    checkpoint = write(tmp_path / family, config, tensors_of(config))
    count, out = (40 if (family, linear) in QUICK else 100), tmp_path / "operations.json"
    done = subprocess.run(
        [sys.executable, "-m", "c2c", "try", "cocoserve", f"model={checkpoint}",
         f"linear={linear}", f"requests={count}", f"operations={count}", f"write={out}"],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        cwd=repository,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert not done.returncode, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["equal"] == found["requests"] == count
    assert (found["unequal"], found["left"], found["compiled"], found["loaded"]) == (0, 0, 0, 0)
    rows = found["operations"]
    assert len(rows) + found["failed"] >= 0.7 * count
    assert {row["kind"] for row in rows} == {"replicate", "migrate", "evict"}
    assert sum(row["kv_bytes"] for row in rows) > 0
    assert found["counts"]["changes"] > found["steps"]
