"""All reference checkpoints behind one engine with killed workers: texts stay Hugging Face's."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.engine.live import Live, make_step, served

# A number draws the engine's settings, the order of requests, who streams, who vanishes, what has
# priority, and the kills; number 0 is the engine as it comes. Others:
#     SERVED_FROM=100 make soak TESTS=tests/engine/test_references.py
FROM = int(os.environ.get("SERVED_FROM", "0"))
NUMBERS = range(FROM, FROM + 3)
CHECKPOINTS, PROMPTS = 12, 9
CLIENTS = 8
LOSSES = 10  # at least; all prompts are asked again until there were as many
MEAN_S = 2.0  # between kills

pytestmark = pytest.mark.soak


@dataclass(frozen=True)
class Asked:
    """A prompt of a checkpoint, and the tokens that Hugging Face's transformers drew after it."""

    name: str
    ids: list[int]
    tokens: list[int]


@pytest.fixture(scope="module")
def asked(shared_part: Callable[[str], Path]) -> list[Asked]:
    folder = shared_part("checkpoints/reference")
    result = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as reference:
            result += [
                Asked(
                    path.stem,
                    reference[f"prompt_{i}_ids"].tolist(),
                    reference[f"greedy_{i}_ids"].tolist(),
                )
                for i in range(PROMPTS)
            ]
    assert len(result) == CHECKPOINTS * PROMPTS
    return result


def drawn(number: int) -> tuple[str, ...]:
    """Return the settings of a number."""
    if number == 0:
        return ("workers=2",)
    rng = random.Random(f"settings {number}")  # small numbers draw alike
    rows, budgets = rng.choice([1, 2, 4, 8]), rng.choice([16, 32, 64, 128])
    settings = [
        f"workers={rng.choice([1, 2, 2, 3])}",
        f"ahead={number % 2}",
        f"rows=[{rows}]" if rows == 1 else f"rows=[1,{rows}]",
        f"budgets=[{budgets}]",
        "context=288",
    ]
    if rng.random() < 0.7:  # else all requests have room at once
        settings.append(f"pool_bytes={rng.choice([2, 4, 8]) << 20}")
    if rng.random() < 0.5:  # the twelve take 13 MB
        settings.append(f"weights_bytes={rng.choice([3, 5, 8]) * 10**6}")
    return tuple(settings)


class Killer(threading.Thread):
    """Kills a worker at random, again and again."""

    def __init__(self, live: Live, seed: int) -> None:
        super().__init__(daemon=True)
        self._live, self._rng, self._stop_now = live, random.Random(seed), threading.Event()
        self._workers = len(live.state()["workers"])

    def run(self) -> None:
        while not self._stop_now.wait(self._rng.expovariate(1.0 / MEAN_S)):
            self._live.kill_worker(self._rng.randrange(self._workers))

    def stop(self) -> None:
        self._stop_now.set()
        self.join()


def answer(live: Live, one: Asked, seed: int) -> None:
    """Ask for a text in one of the ways a client may, and hold it against its reference."""
    rng = random.Random(seed)
    stop_at = rng.randint(1, len(one.tokens)) if rng.random() < 0.1 else None
    body = {
        "model": one.name, "prompt": one.ids, "max_tokens": len(one.tokens), "temperature": 0,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    headers = {"x-priority": str(rng.randint(0, 2))} if rng.random() < 0.5 else {}
    got: list[int] = []
    if stop_at is None and rng.random() < 0.5:
        whole = live.client.post("/v1/completions", json=body, headers=headers)
        assert whole.status_code == 200, (one, whole.text)
        got = whole.json()["choices"][0]["token_ids"]
    else:
        for event in live.events("completions", headers, **body):
            assert "error" not in event, (one, event)
            got += event["choices"][0]["token_ids"]
            if stop_at is not None and len(got) >= stop_at:
                break
    wanted = one.tokens if stop_at is None else one.tokens[: len(got)]
    assert got == wanted, (one.name, len(one.ids))


@pytest.mark.parametrize("number", NUMBERS)
def test_every_text_is_its_reference_while_workers_are_killed(
    number: int, asked: list[Asked], shared: Path, tmp_path: Path
) -> None:
    make_step()
    settings = drawn(number)
    with served(f"catalog={shared / 'checkpoints'}", *settings, log=tmp_path / "log") as live:
        ready = {m["id"] for m in live.client.get("/v1/models").json()["data"]
                 if m["status"] == "ready"}  # fmt: skip
        assert ready == {one.name for one in asked}
        assert live.state()["is_compiled"]
        order, seed, done = random.Random(number), number << 20, 0
        killer = Killer(live, number)
        killer.start()

        def losses() -> int:
            return sum(w["restarts"] for w in live.state()["workers"])

        try:
            with ThreadPoolExecutor(CLIENTS) as pool:
                while done == 0 or losses() < LOSSES:
                    shuffled = order.sample(asked, len(asked))
                    seeds = range(seed + done, seed + done + len(asked))
                    list(pool.map(lambda one, at: answer(live, one, at), shuffled, seeds))
                    done += len(asked)
        finally:
            killer.stop()
        state = live.until(
            lambda s: not s["open"] and all(w["state"] == "idle" for w in s["workers"])
        )
        assert not sum(w["held"] for w in state["workers"])
        assert state["compiled_after_start"] == 0
        print(number, *settings, f"requests={done} losses={losses()}", state["outcomes"])
