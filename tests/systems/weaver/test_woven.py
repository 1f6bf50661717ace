"""A hot model's attention on a cold model's device, both serving in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from c2c.systems.weaver.live.woven import is_away
from tests.tiers import tiered
from tests.transformer.random_checkpoints import config_of, tensors_of, write

# the hot model's family, requests, whether prompts come beside decodes
PAIRS = [
    *(("llama", 8, 0), ("llama", 200, 0), ("mistral", 40, 1), ("qwen2", 40, 0)),
    *(("qwen3_moe", 40, 1), ("mixed", 40, 0), ("deepseek_v3", 40, 0)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "count", "mixes"), tiered(PAIRS))
def test_tokens_of_both_models_are_those_of_each_alone(
    family: str, count: int, mixes: int, tmp_path: Path, repository: Path
) -> None:
    paths = [
        write(tmp_path / f"{role}-{name}", config_of(name), tensors_of(config_of(name)))
        for role, name in (("hot", family), ("cold", "qwen3"))
    ]
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.systems.weaver.woven_pair", *map(str, paths)),
            *map(str, (tmp_path / "store", count, mixes)),
        ],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert not done.returncode, done.stderr
    alone, *woven = map(json.loads, done.stdout.splitlines())
    assert len({tuple(tokens) for tokens in alone["hot"]}) == count
    layers = config_of(family)["num_hidden_layers"]
    shares = [each["brought"] for each in woven]
    longer = sum(len(tokens) > 1 for tokens in alone["hot"])
    assert shares[0] == 0 < shares[1] < longer == shares[2]
    for each in woven:
        assert each["hot"] == alone["hot"]
        assert each["cold"]
        assert all(answer == alone["cold"] for answer in each["cold"])
        assert each["sent"] == each["done"] == layers * each["steps"]
        assert (each["steps"] > 0) == (each["ratio"] > 0)
        assert each["free"] == [12, 12]
        assert each["fallen"] == []
        assert each["compiled"] == 0  # after both were warm


def test_homes_follow_the_ratio_and_nothing_else() -> None:
    away = [[is_away(1, request, ratio) for request in range(4000)] for ratio in (0.0, 0.45, 1.0)]
    assert not any(away[0])
    assert all(away[2])
    assert abs(sum(away[1]) / 4000 - 0.45) < 0.03
    more = [is_away(1, request, 0.6) for request in range(4000)]
    assert all(later for now, later in zip(away[1], more, strict=True) if now)
    assert away[1] != [is_away(2, request, 0.45) for request in range(4000)]
