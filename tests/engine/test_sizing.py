"""A pool of what a share of the memory leaves: measured once, kept, given up where it is wrong."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from c2c.cost import load_constants
from c2c.engine import Options, find_models, profile
from c2c.engine import messages as say
from c2c.engine.fleet import useful_pool_bytes
from c2c.engine.settings import EngineSettings
from c2c.engine.sizing import measured_options, read_record, room_bytes, write_record
from c2c.errors import DataError, SettingError
from c2c.hardware import KvRecord, free_memory_bytes
from c2c.serving import SystemSpec
from c2c.transformer.shapes import Shapes
from pallas_kernels.repository import Repository, RepositoryWarning
from tests.engine.checkpoints import make_catalog

GIB = 1 << 30
KEY = {"models": ["a"], "device": ["cpu", 1, 2]}
RECORD = KvRecord(free_bytes=30 * GIB, held_bytes=10 * GIB, temporary_bytes=5)


def test_what_was_measured_holds_while_the_share_is_free(tmp_path: Path) -> None:
    assert read_record(tmp_path, KEY, 40 * GIB, 0.9) is None
    write_record(tmp_path, KEY, RECORD)
    assert read_record(tmp_path, KEY, 36 * GIB, 0.9) == RECORD  # a tenth less than was: the bound
    assert read_record(tmp_path, {**KEY, "models": ["b"]}, 40 * GIB, 0.9) is None
    with pytest.warns(RepositoryWarning, match="needs 38654705664.*measured anew"):
        assert read_record(tmp_path, KEY, 36 * GIB - 1, 0.9) is None
    assert Repository(tmp_path).entries() == ()  # what is kept there is no executable


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"a"', '"c"'),
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace('"held_bytes": ', '"held_bytes": -'),
        lambda text: text.replace('"free_bytes"', '"freebytes"'),
        lambda _: "[]",
    ],
)
def test_what_was_changed_is_measured_anew(tmp_path: Path, change: object) -> None:
    write_record(tmp_path, KEY, RECORD)
    (path,) = (tmp_path / "kv").glob("*.json")
    path.write_text(change(path.read_text()))  # type: ignore[operator]
    with pytest.warns(RepositoryWarning, match="not a measurement of an earlier start"):
        assert read_record(tmp_path, KEY, 40 * GIB, 0.9) is None


def test_a_share_and_a_size_exclude_each_other() -> None:
    for wrong in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(SettingError, match=r"memory_fraction=.*a share in \(0, 1\]"):
            Options(memory_fraction=wrong)
    with pytest.raises(SettingError, match="null with pool_bytes=1000"):
        Options(memory_fraction=0.5, pool_bytes=1000)


def test_a_second_start_takes_what_the_first_has_measured(tmp_path: Path) -> None:
    catalog = make_catalog(tmp_path / "models")
    entries = [e for e in find_models(catalog) if e.name == "one"]
    options = Options(rows=(1, 2), budgets=(16,), context=128, memory_fraction=0.5)
    settings = EngineSettings(
        options=options, system=SystemSpec(name="any"), constants=load_constants("gh200"),
        executables=str(tmp_path / "store"), pools=tmp_path,
    )  # fmt: skip
    items = [say.Item(name="one", path=str(entries[0].path), pool=str(tmp_path / "one.pool"))]
    said: list[str] = []

    def measured() -> Options:
        return asyncio.run(measured_options(entries, settings, items, said.append))

    first = measured()
    assert said.pop(0) == "measuring the memory available to the KV cache"
    assert "(measured:" in said.pop()
    assert measured() == first
    assert "(measured by an earlier start:" in said.pop()
    assert not said
    # so small a model never fills its share: no more is taken than its requests can use
    assert first.pool_bytes == useful_pool_bytes(entries, options)
    assert replace(first, pool_bytes=None, memory_fraction=0.5) == options
    (path,) = (tmp_path / "store" / "kv").glob("*.json")
    record = json.loads(path.read_text())["record"]
    # the interpreter and jax alone take as much; the compiler's numbers are of one small step
    assert 50e6 < record["held_bytes"] < 3e9
    assert 0 < record["temporary_bytes"] < record["argument_bytes"] * 100
    whole = record["free_bytes"] + record["held_bytes"]
    assert whole == pytest.approx(room_bytes(entries, settings), rel=0.5)  # others run, too
    items[0] = say.Item(name="one", path=str(tmp_path / "gone"), pool=None)
    path.unlink()
    with pytest.raises(DataError, match="cannot be measured: catalog: none of its models"):
        measured()


def test_what_is_measured_is_the_largest_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Shapes] = []
    monkeypatch.setattr(profile, "load", lambda *_, **__: None)
    monkeypatch.setattr(profile, "_largest", lambda _model, _pool, shapes: steps.append(shapes))
    setup = say.Setup(
        models=(say.Item(name="one", path="none", pool=str(tmp_path / "pool")),), dtype="float32",
        linear="auto", executables=None, rows=(1, 2, 4), budgets=(16, 32, 64), width=2,
        superblocks=0, superblock=1536,
    )  # fmt: skip
    with pytest.raises(DataError, match="none of its models can be loaded"):  # nothing is compiled
        profile.measured(setup)
    assert [(each.rows, each.budgets) for each in steps] == [((4,), (64,))]


def test_free_memory_is_what_linux_calls_available(tmp_path: Path) -> None:
    told = tmp_path / "meminfo"
    told.write_text("MemTotal:       99 kB\nMemAvailable:   77 kB\n")
    assert free_memory_bytes(told) == 77 * 1024
    told.write_text("MemTotal:       99 kB\n")
    assert free_memory_bytes(told) == free_memory_bytes(tmp_path / "none") > 77 * 1024
