"""A hot and a cold process over a slot, whole and while one of them fails."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from c2c.errors import SettingError
from experiments.papers.weaver.pair import PairSettings, main, paired, waits_of
from experiments.papers.weaver.workers import Ended
from tests.tiers import tiered
from tests.transformer.random_checkpoints import config_of, tensors_of, write


@pytest.fixture(scope="module")
def settings_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return settings of a hot family beside a cold qwen3; all runs share executables."""
    folder = tmp_path_factory.mktemp("pair")

    def made(family: str = "llama", **settings: Any) -> PairSettings:
        for name in {family, "qwen3"}:
            if not (folder / name).exists():
                write(folder / name, config_of(name), tensors_of(config_of(name)))
        given = {
            "hot": str(folder / family), "cold": str(folder / "qwen3"), "requests": 12,
            "cold_requests": 2, "rows": 4, "executables": str(folder / "store"), "limit_s": 20.0,
        }  # fmt: skip
        return PairSettings(**given | settings)

    return made


def right(end: Ended | None) -> Ended:
    """Check what holds of each process that lives to its end."""
    assert end is not None
    assert end.equal == end.answers
    assert end.once
    assert end.left == end.compiled == 0
    return end


@pytest.mark.parametrize(
    ("family", "ratio", "requests_"),
    tiered([("llama", 0.45, 12), ("llama", 1.0, 200), ("mistral", 0.45, 200), ("llama", 0.0, 12),
            ("qwen3_moe", 1.0, 60)]),
)  # fmt: skip
def test_two_processes_answer_as_each_model_alone(
    settings_of: Any, family: str, ratio: float, requests_: int
) -> None:
    hot, cold = map(right, paired(settings_of(family, ratio=ratio, requests=requests_)))
    assert hot.tasks == cold.tasks == config_of(family)["num_hidden_layers"] * hot.steps
    assert hot.fallbacks == {}
    assert (hot.brought > 0) == (hot.steps > 0) == (ratio > 0)
    assert cold.answers
    waits = waits_of(hot, cold)
    assert len(waits.waits) == len(waits.stalls) == hot.tasks
    assert waits.late == 0
    if hot.tasks:
        assert waits.waits.max() <= waits.longest


@pytest.mark.slow
def test_a_receiver_polls_between_pieces_by_turns(settings_of: Any) -> None:
    """Rounds have whole products and pieces by turns; each task knows in which it was done."""
    settings = settings_of(ratio=1.0, requests=60, cold_requests=1, columns=[0, 64])
    hot, cold = map(right, paired(settings))
    assert len(cold.columns) == cold.tasks == hot.tasks
    assert {*cold.columns} == {0, 64}
    assert waits_of(hot, cold).late == 0


@pytest.mark.slow
def test_an_idle_receiver_answers(settings_of: Any) -> None:
    hot, cold = map(right, paired(settings_of(ratio=1.0, cold_requests=0)))
    assert hot.tasks == cold.tasks > 0
    assert cold.answers == 0


@pytest.mark.slow
def test_a_receiver_that_is_killed_costs_no_answer(settings_of: Any) -> None:
    def kill(turn: int, hot: int, cold: int) -> None:
        if turn == 8:
            os.kill(cold, signal.SIGKILL)

    hot, cold = paired(settings_of(ratio=1.0), kill)
    assert cold is None
    assert right(hot).fallbacks["LOST"] > 0


@pytest.mark.slow
def test_a_receiver_that_is_stopped_is_left(settings_of: Any) -> None:
    def stop(turn: int, hot: int, cold: int) -> None:
        if turn == 8:
            os.kill(cold, signal.SIGSTOP)
            threading.Timer(4.0, os.kill, (cold, signal.SIGCONT)).start()

    hot, cold = map(right, paired(settings_of(ratio=1.0, limit_s=1.0), stop))
    assert hot.fallbacks["LOST"] > 0
    assert cold.tasks < 3 * hot.steps
    assert cold.answers  # it went on


@pytest.mark.slow
def test_a_receiver_without_blocks_says_so(settings_of: Any) -> None:
    hot, cold = map(
        right, paired(settings_of("qwen3", ratio=1.0, prompt=60, superblocks=4, reserve=3))
    )
    assert hot.fallbacks["NO_BLOCKS"] > 0
    assert cold.tasks > 0


@pytest.mark.slow
def test_a_sender_that_is_killed_leaves_no_blocks(settings_of: Any) -> None:
    def kill(turn: int, hot: int, cold: int) -> None:
        if turn == 8:
            os.kill(hot, signal.SIGKILL)

    hot, cold = paired(settings_of(ratio=1.0), kill)
    assert hot is None
    assert right(cold).tasks > 0
    assert right(cold).answers > 0


@pytest.mark.slow
def test_the_command_prints_and_writes(
    settings_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(settings_of(), write=str(tmp_path / "pair.json"))
    said = [f"{name}={value}" for name, value in vars(settings).items() if value is not None]
    assert main(said) == 0
    shown = capsys.readouterr().out
    assert "12 of 12 hot answers" in shown
    assert "fallbacks: none" in shown
    assert (tmp_path / "pair.json").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"ratio": 1.2}, r"ratio=1.2: expected a share in \[0, 1\]"),
     ({"requests": 0}, "requests=0"), ({"limit_s": 0.0}, "limit_s=0.0"),
     ({"columns": [0, 96]}, "columns=96: expected 0, or a multiple of a tile of 64"),
     ({"superblocks": 3, "reserve": 4}, "reserve=4: expected at most the 3 superblocks"),
     ({"superblocks": 1, "prompt": 400}, "superblocks=1: expected at least 2")],
)  # fmt: skip
def test_bad_settings_are_refused_before_anything_starts(
    settings_of: Any, wrong: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multiprocessing.context.SpawnContext.Process", None)
    with pytest.raises(SettingError, match=message):
        paired(settings_of(**wrong))
