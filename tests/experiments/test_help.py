"""`--help` of the simulator: every setting with its meaning and its value."""

from __future__ import annotations

import pytest

from c2c.config.schema import RunConf, ScaleConf, SloConf, TimelineConf
from c2c.policies import DECISIONS
from c2c.serving import SystemSpec
from c2c.workloads import WorkloadConfig
from experiments import simulate
from experiments.plain_settings import descriptions


@pytest.mark.parametrize(
    "schema", [RunConf, SloConf, ScaleConf, TimelineConf, WorkloadConfig, SystemSpec]
)
def test_every_setting_is_described_where_it_is_defined(schema: type) -> None:
    missing = [name for name, text in descriptions(schema).items() if len(text) < 8]
    # `name` says it all
    assert [name for name in missing if name != "name"] == []


def test_help_shows_meanings_and_values_as_the_command_line_has_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["workload=poisson", "workload.rate_rps=7", "--help", "seed=1,2"]
    assert simulate.main(given) == 0
    told = capsys.readouterr().out
    assert "  workload.rate_rps=7.0 " in told
    assert "requests per second" in told
    assert "  workload=poisson " in told
    assert "one of agents, azure2023, closed_loop," in told
    for name in DECISIONS:
        assert f"  system/{name}=" in told
    assert "  system/place=bandwidth_aware" in told
    assert max(map(len, told.splitlines())) <= 100
    assert "$" not in told
