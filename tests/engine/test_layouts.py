"""A worker over several devices, whose layers and caches move while it serves, as processes."""

from __future__ import annotations

import random
import re
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from c2c.config import load as load_settings
from c2c.engine import find_models
from c2c.engine.variants import check_layout
from c2c.errors import DataError, SettingError
from c2c.serving import StepLayout
from c2c.transformer import load
from experiments.serving.laid_out import laid_out
from experiments.serving.live_run_simulation import prepared_of
from experiments.serving.settings import overrides_of, register, settings_of
from tests.engine.checkpoints import VOCAB, make_catalog
from tests.engine.live import Live, served

SCALED = ("system=cocoserve", "node=cpu_x4", "rows=[4]", "budgets=[32]", "context=320")

PLACED = (
    "system=tessera", "node=cpu_x4", "node.gpus=[cpu,cpu]", "system.layout.plans=joint",
    "system.layout.in_flight=1", "system.layout.objective=throughput", "rows=[4]", "budgets=[32]",
    "context=320",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    make_catalog(folder / "models")
    return folder


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("system=replicas", "node=a100_l40s"), "a layout of layers that workers place"),
        (
            (*PLACED, "system.layout.in_flight=2"),
            "workers=1: expected 1, with a layout of one lane",
        ),
        (
            (*PLACED, "system.layout.plans=each_size", "system.layout.objective=null"),
            "a layout of layers that workers place",
        ),
        (("system=cocoserve", "node=cpu_x4"), "replicated=30: expected at most 3 layers"),
        ((*SCALED, "system.layout.replicated=1", "workers=2"), "workers=2: expected 1"),
        ((*SCALED, "system.layout.replicated=1", "system.layout.firsts=[0,1]"), "layers over"),
        ((*SCALED, "system.layout.replicated=1", "system.layout.firsts=[1]"), "begins on gpu0"),
        (("node=cpu_x4",), "node='cpu_x4': expected none"),
    ],
)
def test_a_layout_that_no_worker_serves_is_refused_before_any_is_started(
    folder: Path, settings: tuple[str, ...], said: str
) -> None:
    register()
    entries = find_models(folder / "models" / "one")
    asked = settings_of(load_settings(overrides_of(["port=0", *settings]), "serve"))

    def prepare() -> None:
        found = laid_out(asked.given, entries, asked.engine)
        check_layout(found.system.layout, found.options.workers)

    with pytest.raises(SettingError, match=said):
        prepare()


def test_a_layout_begins_where_its_first_layer_is(folder: Path) -> None:
    register()
    overrides = overrides_of(["port=0", *SCALED, "system.layout.replicated=1"])
    asked = settings_of(load_settings(overrides, "serve"))
    found = laid_out(asked.given, find_models(folder / "models" / "one"), asked.engine)
    with pytest.raises(SettingError, match=r"worker=.*a module of workers over several devices"):
        replace(found, worker="c2c.engine.worker")
    system = found.system
    assert system.layout is not None
    layout, lane = system.layout, system.layout.lanes[0]

    def on(*first: str) -> StepLayout:
        return replace(layout, lanes=(replace(lane, paths=(first, *lane.paths[1:])),))

    check_layout(on("gpu0", "gpu1", "gpu1"), 1)
    with pytest.raises(SettingError, match="begins on gpu0, not on gpu1"):
        check_layout(on("gpu1", "gpu0", "gpu0"), 1)


def asked_for(count: int) -> list[tuple[list[int], int]]:
    rng = random.Random(1)
    return [
        ([rng.randrange(VOCAB) for _ in range(rng.randint(1, 150))], rng.randint(1, 100))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Live]:
    settings = (
        f"catalog={folder / 'models' / 'one'}", *SCALED, "system.layout.replicated=2",
        "system.layout.copies=3", "system.layout.migrated=1", "system.layout.between=1",
        "system/vary=by_waiting", "system.vary.prompts=2", "system.vary.window_s=0.1",
        "pool_bytes=16000000",
        f"out={folder / 'out'}", "retries=100",
        "patience=1000",
    )  # fmt: skip
    with served(*settings, log=folder / "log") as live:
        yield live


@pytest.mark.slow
def test_tokens_are_those_of_one_device_while_layers_move_and_workers_are_killed(
    folder: Path, live: Live
) -> None:
    asked, over = asked_for(90), threading.Event()
    model = load(folder / "models" / "one")
    wanted = [model.generate(ids, new, stop_at_eos=False) for ids, new in asked]
    kills = []

    def tokens(number: int) -> Any:
        ids, new = asked[number]
        if number % 7 == 6:  # somebody who goes away
            for _ in live.events("completions", model="one", prompt=ids, max_tokens=new):
                return None
        return live.tokens("one", ids, new)

    def killing() -> None:
        while not over.wait(4.0):
            kills.append(live.kill_worker(0))

    with ThreadPoolExecutor(12) as pool:
        first = list(pool.map(tokens, range(45)))
        state = live.until(lambda s: s["workers"][0]["state"] == "idle")
        assert state["workers"][0]["layout"]["changes"] > 0
        assert state["workers"][0]["layout"]["kv_bytes"] > 0
        thread = threading.Thread(target=killing)
        thread.start()
        rest = list(pool.map(tokens, range(45, 90)))
        over.set()
        thread.join()
    for number, found in enumerate([*first, *rest]):
        assert found is None or found == wanted[number]
    state = live.until(lambda s: not s["open"])
    assert state["compiled_after_start"] == 0
    assert state["workers"][0]["held"] == 0


@pytest.mark.slow
def test_what_was_served_over_several_devices_is_not_replayed_by_fits_of_one(
    folder: Path, live: Live
) -> None:
    live.process.terminate()
    live.process.wait(60.0)
    with pytest.raises(DataError, match="had several devices"):
        prepared_of(folder / "out")


@pytest.mark.slow
def test_a_model_whose_parts_are_placed_over_two_devices_answers_as_on_one(
    folder: Path, tmp_path: Path
) -> None:
    asked, model = asked_for(60), load(folder / "models" / "one")
    settings = (f"catalog={folder / 'models' / 'one'}", *PLACED, "workers=1", "retries=100",
                "pool_bytes=16000000", "patience=1000")  # fmt: skip
    with served(*settings, log=tmp_path / "log") as live:
        with ThreadPoolExecutor(12) as pool:
            first = list(pool.map(lambda one: live.tokens("one", *one), asked[:30]))
            live.kill_worker(0)
            rest = list(pool.map(lambda one: live.tokens("one", *one), asked[30:]))
        assert [*first, *rest] == [
            model.generate(ids, new, stop_at_eos=False) for ids, new in asked
        ]
        state = live.until(lambda s: not s["open"])
        assert state["compiled_after_start"] == 0
        assert state["workers"][0]["held"] == 0
    (note,) = re.findall(
        r"pair cpu_x4: (\d+) parts of layers on cpu 1, (\d+) on cpu 2",
        (tmp_path / "log").read_text(),
    )
    assert all(map(int, note))


@pytest.mark.slow
def test_a_hot_and_a_cold_model_are_woven_over_two_workers_that_are_killed(
    folder: Path, tmp_path: Path
) -> None:
    """Tokens are those of each model alone while either worker is lost and comes back."""
    models = tmp_path / "models"
    models.mkdir()
    for name in ("one", "three"):
        shutil.copytree(folder / "models" / name, models / name)
    rng = random.Random(2)
    asked = [
        (rng.choice(["one", "one", "three"]), [rng.randrange(VOCAB) for _ in range(length)], new)
        for length, new in ((rng.randint(1, 150), rng.randint(20, 100)) for _ in range(120))
    ]
    alone = {name: load(models / name) for name in ("one", "three")}
    wanted = [alone[name].generate(ids, new, stop_at_eos=False) for name, ids, new in asked]
    settings = (
        f"catalog={models}", "system=weaver", "node=cpu_x4", "workers=2", "rows=[4]",
        "budgets=[32]", "context=320", "system.layout.ratio=0.6", "pool_bytes=16000000",
        "retries=100", "patience=1000",
    )  # fmt: skip
    over, kills = threading.Event(), []
    with served(*settings, log=tmp_path / "log") as live:

        def killing() -> None:
            while not over.wait(3.0):
                kills.append(live.kill_worker(len(kills) % 2))

        with ThreadPoolExecutor(12) as pool:
            first = list(pool.map(lambda one: live.tokens(*one), asked[:60]))
            tasks = [worker["layout"]["tasks"] for worker in live.state()["workers"]]
            thread = threading.Thread(target=killing)
            thread.start()
            rest = list(pool.map(lambda one: live.tokens(*one), asked[60:] * 3))
            over.set()
            thread.join()
        assert [*first, *rest] == [*wanted[:60], *(wanted[60:] * 3)]
        assert tasks[0] > 100
        assert tasks[1] == 0
        state = live.until(lambda s: not s["open"])
        assert state["workers"][0]["layout"]["tasks"] > tasks[0]  # the link came back
        assert state["compiled_after_start"] == 0
        assert [worker["held"] for worker in state["workers"]] == [0, 0]
    assert len(kills) >= 2
