"""Weights that come and go: what is read, what is stopped, what a lost reader does."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

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
            told=lambda model, failed: told.append((model, failed)),
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
