"""`--help` of the commands whose settings are one dataclass."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module

import pytest

from experiments.plain_settings import descriptions, read_settings

COMMANDS = {
    "lab.bench.llama_cpp": "LlamaCppSettings", "measured.command": "MeasuredSettings",
    "lab.bench.prediction.command": "PredictionSettings", "lab.bench.simulator": "BenchSettings",
    "papers.cocoserve.plan": "PlanSettings", "papers.cocoserve.scale": "ScaleSettings",
    "papers.medusa.ranks": "RanksSettings", "papers.medusa.restore": "RestoreSettings",
    "papers.medusa.steps": "StepsSettings", "replay": "ReplaySettings",
    "papers.tessera.planner": "PlannerSettings", "papers.tessera.ways": "WaysSettings",
    "warm": "WarmSettings", "papers.weaver.pair": "PairSettings",
    "papers.weaver.plan": "PlanSettings",
}  # fmt: skip


@pytest.mark.parametrize(("module", "name"), COMMANDS.items())
def test_help_tells_every_setting(
    module: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = import_module(f"experiments.{module}")
    schema = getattr(command, name)
    with pytest.raises(SystemExit) as ended:
        read_settings(schema, ["whatever=1", "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert told.startswith((command.__doc__ or "").splitlines()[0])
    for field in fields(schema):
        assert f"  {field.name}=" in told
    assert all(len(text) > 3 for text in descriptions(schema).values()), descriptions(schema)
