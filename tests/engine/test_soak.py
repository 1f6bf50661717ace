"""A minute of faults: killed workers, clients that vanish; and nothing is left behind.

C2C_SOAK_S=1200 makes it twenty.
"""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.checkpoints import VOCAB, make_catalog
from tests.engine.live import Live, make_step, served

NAMES = ("one", "two", "three", "bare")
CLIENTS = 8
SECONDS = float(os.environ.get("C2C_SOAK_S", "60"))
MOST_GROWTH_MB = 40.0  # of the scheduler; a leak of a kilobyte a request is less

pytestmark = pytest.mark.soak


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def threads(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def request(live: Live, rng: random.Random) -> tuple[str, list[int], int]:
    prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 150))]
    return rng.choice(NAMES), prompt, rng.randint(2, 60)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files in /proc")
def test_faults_throughout_and_nothing_left(tmp_path: Path) -> None:
    settings = (
        f"catalog={make_catalog(tmp_path / 'models')}", "workers=2", "rows=[1,4]",
        "budgets=[16,64]", "context=320", "pool_bytes=16000000",
        "weights_bytes=400000",  # three of the four
    )  # fmt: skip
    make_step()
    with served(*settings, log=tmp_path / "log") as live:
        assert live.state()["is_compiled"]
        rng = random.Random(0)
        asked = [request(live, rng) for _ in range(24)]
        undisturbed = [live.tokens(*each) for each in asked]
        pid = live.process.pid
        before, threads_before, mb_before = descriptors(pid), threads(pid), resident_mb(pid)
        end_s = time.monotonic() + SECONDS
        stop = threading.Event()

        finished = [0] * CLIENTS

        def kill() -> None:
            k, since = 0, 0
            while not stop.wait(2.0):
                # On a machine that others use, too, a process may take longer to come than to go.
                if sum(finished) >= since + CLIENTS and live.kill_worker(k % 2):
                    since = sum(finished)
                k += 1

        def client(seed: int) -> int:
            mine, done = random.Random(seed), 0
            while time.monotonic() < end_s:
                at = mine.randrange(len(asked))
                name, prompt, new = asked[at]
                got: list[int] = []
                vanishes = mine.random() < 0.1
                body = {"model": name, "prompt": prompt, "max_tokens": new, "temperature": 0}
                more = {"ignore_eos": True, "return_token_ids": True}
                for event in live.events("completions", **body, **more):
                    got += event["choices"][0]["token_ids"]
                    if vanishes and got:
                        break
                assert got == undisturbed[at][: len(got)]
                assert vanishes or got == undisturbed[at]
                done += 1
                finished[seed] = done
            return done

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            with ThreadPoolExecutor(CLIENTS) as pool:
                done = sum(pool.map(client, range(CLIENTS)))
        finally:
            stop.set()
            killer.join()
        state = live.until(
            lambda s: not s["open"] and all(w["state"] == "idle" for w in s["workers"])
        )
        assert done > 20
        assert sum(w["restarts"] for w in state["workers"]) >= min(6, SECONDS // 60)
        assert not sum(w["held"] for w in state["workers"])
        assert state["compiled_after_start"] == 0
        assert descriptors(pid) <= before + 4
        assert threads(pid) <= threads_before + len(os.sched_getaffinity(0)) + 4  # a pool's
        assert resident_mb(pid) <= mb_before + MOST_GROWTH_MB
