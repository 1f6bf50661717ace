"""Weights that come and go: what is read, what is stopped, what a lost reader does."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from c2c.engine.messages import Item
from c2c.engine.store import Store
from c2c.transformer import load
from tests.engine.checkpoints import make_catalog


def test_weights_are_read_stopped_and_dropped(tmp_path: Path) -> None:
    catalog = make_catalog(tmp_path / "models")
    items = {
        name: Item(name=name, path=str(catalog / name), pool=str(tmp_path / f"{name}.pool"))
        for name in ("one", "two", "bare", "damaged")
    }
    told: list[tuple[str, str]] = []

    async def heard(store: Store, count: int) -> None:
        while len(told) < count or store.coming:
            await asyncio.sleep(0.01)

    async def scenario() -> None:
        store = Store(
            items, (), dtype="float32", linear="staged", owns_files=True,
            report=lambda model, failed: told.append((model, failed)),
        )  # fmt: skip
        reader = await store.stand_by()
        for name in ("one", "damaged", "two", "one"):
            store.fetch(name)
        os.kill(reader.pid, signal.SIGKILL)  # under the first: it is read once more
        await asyncio.wait_for(heard(store, 3), 120.0)
        assert [name for name, _ in told] == ["one", "damaged", "two"]
        assert [bool(failed) for _, failed in told] == [False, True, False]
        assert "NaN" in told[1][1]
        assert store.here == {"one", "two"}
        store.fetch("bare")
        store.fetch("damaged")
        await asyncio.sleep(0)  # the first is under way
        store.stop("bare")
        await asyncio.wait_for(heard(store, 4), 120.0)
        assert [name for name, _ in told[3:]] == ["damaged"]
        assert "bare" not in store.here
        store.drop("one")
        assert not Path(str(items["one"].pool)).exists()
        await store.close()

    asyncio.run(scenario())
    model = load(catalog / "two", "float32", linear="staged", pool=items["two"].pool)
    same = load(catalog / "two", "float32")
    assert model.generate([3, 5], 4) == same.generate([3, 5], 4)


# Takes the place of the process that reads: writes a file as that does, then does as it is told.
_READER = """
import json, os, pathlib, sys, time
for line in sys.stdin:
    item = json.loads(line)["item"]
    path, how = pathlib.Path(item["pool"]), item["path"]
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(b"pages")
    if how == "dies":
        os._exit(1)
    if how == "ends":
        partial.rename(path)
    if how == "fails":
        print(json.dumps({"failed": "a damaged file"}), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("owns_files", [False, True])
@pytest.mark.parametrize("how", ["stopped", "ends", "dies", "fails", "closed"])
def test_a_load_that_does_not_come_to_its_end_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, owns_files: bool
) -> None:
    """It is stopped, stopped when its file is whole, its readers die, it fails, the engine ends."""
    folder = tmp_path / "weights"
    folder.mkdir()
    item = Item(name="one", path=how, pool=str(folder / "one.pool"))
    told: list[str] = []

    async def reader(_: Store) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", _READER,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def until(holds: Callable[[], object]) -> None:
        async with asyncio.timeout(60.0):
            while not holds():
                await asyncio.sleep(0.001)

    async def scenario() -> list[str]:
        store = Store(
            {"one": item}, (), dtype="float32", linear="staged", owns_files=owns_files,
            report=lambda _, failed: told.append(failed),
        )  # fmt: skip
        store.fetch("one")
        if how in ("dies", "fails"):
            await until(lambda: told)
        else:
            name = "one.pool" if how == "ends" else "one.pool.partial"
            await until((folder / name).exists)
        if how in ("stopped", "ends"):
            store.stop("one")
            await until(lambda: store._work is None)
        if how == "closed":
            await store.close()
        left = [path.name for path in folder.iterdir()]
        assert not store.here
        assert not store.coming
        await store.close()
        return left

    monkeypatch.setattr(Store, "_new_reader", reader)
    left = asyncio.run(scenario())
    assert left == (["one.pool"] if how == "ends" and not owns_files else [])
    assert [bool(failed) for failed in told] == [True] * (how in ("dies", "fails"))
