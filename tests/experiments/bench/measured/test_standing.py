"""The standing table of public engine runs: no group of them may become worse by two points."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from c2c.errors import DataError
from experiments.measured.engines import EngineRun, runs_of
from experiments.measured.rows import OWN, read_folder
from experiments.measured.standing_table import (
    FIGURES,
    as_markdown,
    errors_of_runs,
    group_errors,
    write_errors,
    write_page,
)
from experiments.near_runs import RunError, read_errors

PAGE = Path(__file__).parents[4] / "docs" / "evidence" / "measured.md"
WORSE = 0.02
# One in so many runs; a run takes an eighth of a second.
EVERY = [97, pytest.param(7, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.soak)]
# Held-out medians of TPOT and of tokens a second that the docs state, in percent.
PROMISED = {"dense bf16": 8, "dense fp8": 8, "mixture fp8_block": 13, "mixture nvfp4": 9,
            "mixture mxfp4": 14}  # fmt: skip


def runs() -> list[EngineRun]:
    return [run for run, _ in runs_of(read_folder(OWN)["engine_runs"]) if run is not None]


def worse(now: list[RunError], stored: list[RunError]) -> list[str]:
    """Return the groups whose median error grew by more than `WORSE`."""
    result, before = [], group_errors(stored)
    for key, errors in group_errors(now).items():
        for figure in FIGURES:
            if not len(errors[figure]):
                continue
            new, old = (float(np.median(np.abs(e))) for e in (errors[figure], before[key][figure]))
            if new > old + WORSE:
                result.append(f"{key} {figure}: {old:.3f} -> {new:.3f}")
    return result


@pytest.mark.parametrize("every", EVERY)
def test_no_group_of_runs_is_worse_than_stored(every: int) -> None:
    stored = list(read_errors())
    assert len(stored) == len(runs())
    assert not worse(list(errors_of_runs(runs()[::every])), stored[::every])


def test_a_worse_group_is_named() -> None:
    stored = list(read_errors())
    of = [e for e in stored if e.precision == "nvfp4"]
    assert not worse(of, stored=of)
    shifted = [replace(e, tpot=abs(e.tpot) + 0.03) for e in of]
    assert any("nvfp4" in line and "tpot" in line for line in worse(shifted, of))


def test_held_out_medians_are_within_what_the_docs_state() -> None:
    held = group_errors([e for e in read_errors() if e.held_out])
    for group, percent in PROMISED.items():
        for figure in ("tpot", "tokens_s"):
            median = float(np.median(np.abs(held["precision", group][figure])))
            assert 100 * median <= percent, (group, figure, median)


def test_the_page_has_the_stored_errors_and_the_file_reads_back(tmp_path: Path) -> None:
    errors = read_errors()
    assert as_markdown(errors) in PAGE.read_text(encoding="utf-8")
    write_errors(tmp_path / "errors.csv", errors)
    assert repr(read_errors(tmp_path / "errors.csv")) == repr(errors)  # NaN equals itself here
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    write_page(copy, errors)
    assert copy.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
    copy.write_text("# no table\n", encoding="utf-8")
    with pytest.raises(DataError, match="no lines"):
        write_page(copy, errors)


def test_groups_cover_every_run_once_a_grouping() -> None:
    counts: dict[str, int] = defaultdict(int)
    errors = read_errors()
    for (grouping, _), of in group_errors(errors).items():
        counts[grouping] += len(of["tpot"])
    finite = sum(np.isfinite(e.tpot) for e in errors)
    assert set(counts.values()) == {finite}
    assert finite > 0.99 * len(errors)
