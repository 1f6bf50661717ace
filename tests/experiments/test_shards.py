"""`shards` of c2c simulate: the same results from several processes, in several files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from c2c.config import build, load
from experiments.simulation import execute
from experiments.simulation.execute import chosen_shards

FLEET = (
    "catalog=dense16", "superchips=4", "system=c2cserve_letter", "workload=poisson",
    "workload.models=16", "workload.rate_rps=4", "figures=false",
)  # fmt: skip


def _done(folder: Path, *overrides: str, requests: int = 3000) -> Any:
    chosen = [*FLEET, f"workload.requests={requests}", f"folder={folder}", *overrides]
    return execute(build(load(chosen)))


def _records(folder: Path) -> dict[str, list[Any]]:
    result: dict[str, list[Any]] = (
        pq.read_table(folder / "requests.parquet").sort_by("id").to_pydict()
    )
    return result


def _equal(one: Path, other: Path) -> None:
    a, b = _records(one), _records(other)
    assert repr(a) == repr(b)  # NaN equals NaN so
    for name in ("summary.json", "timeline.json.gz"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_shards_give_the_results_of_one_process(tmp_path: Path) -> None:
    _done(tmp_path / "one", "cells=4")
    sharded = _done(tmp_path / "two", "cells=4", "shards=2")
    assert sharded.speed.shards == 2
    names = sorted(p.name for p in (tmp_path / "two" / "requests.parquet").iterdir())
    assert names == ["0-0.parquet", "1-0.parquet"]
    _equal(tmp_path / "one", tmp_path / "two")
    # The folder is complete whatever the number of processes, and can be made anew with another.
    assert _done(tmp_path / "two", "cells=4").skipped
    again = _done(tmp_path / "two", "cells=4", "resume=false")
    assert again.speed.shards == 1
    assert (tmp_path / "two" / "requests.parquet").is_file()
    _equal(tmp_path / "one", tmp_path / "two")


def test_a_long_run_is_kept_and_summarised_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _done(tmp_path / "whole")
    monkeypatch.setattr(sys.modules["experiments.simulation.execute"], "PART_ROWS", 500)
    parts = _done(tmp_path / "parts")
    files = list((tmp_path / "parts" / "requests.parquet").iterdir())
    assert len(files) >= 6
    assert repr(_records(tmp_path / "whole")) == repr(_records(tmp_path / "parts"))
    assert {k: v for k, v in parts.summary.items() if k != "verdict"} == {
        k: v for k, v in whole.summary.items() if k != "verdict"
    }
    assert parts.summary["verdict"]["met"] == pytest.approx(whole.summary["verdict"]["met"])
    assert parts.summary["verdict"]["parts"] == len(files)
    assert parts.summary["verdict"]["state"] == whole.summary["verdict"]["state"]


def test_a_fleet_in_one_piece_says_so() -> None:
    setup = build(load([*FLEET, "workload.requests=100", "shards=4"]))
    assert len(chosen_shards(setup)) == 1
    assert "the fleet has 1 part whose chips share no model" in setup.notes[-1]
    cut = build(load([*FLEET, "workload.requests=100", "shards=2", "cells=2"]))
    assert len(chosen_shards(cut)) == 2
    assert not any("shards" in note for note in cut.notes)


@pytest.mark.slow
def test_told_to_stop_all_processes_end_and_nothing_is_left(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "c2c", "simulate", *FLEET, "cells=4", "shards=2",
        "workload.requests=3000000", "folder=here",
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        for _ in range(600):
            if list((tmp_path / "here").glob("requests.parquet/.*.partial")):
                break
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=60) == 130
    assert (tmp_path / "here" / "crash.json").exists()
    assert not list((tmp_path / "here").rglob("*.parquet"))[1:]
    assert not list((tmp_path / "here").rglob(".*.partial"))
    healed = _done(tmp_path / "here")
    assert not healed.skipped
    assert (tmp_path / "here" / "requests.parquet").is_file()


CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
others = [cluster.add_node(num_cpus=1) for _ in range(2)]
print(cluster.address, flush=True)
for _ in sys.stdin:
    cluster.remove_node(others.pop(), allow_graceful=False)
cluster.shutdown()
"""


@pytest.fixture
def cluster(ray_installed: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Three machines of Ray that the environment names; a call ends one of them.

    They are processes of one that may fork (jax's may not).
    """
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # the token is not handed to other processes
    command = [sys.executable, "-c", CLUSTER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as head:
        assert head.stdin is not None
        assert head.stdout is not None
        address = head.stdout.readline().strip()
        assert address, "the cluster did not start"
        monkeypatch.setenv("RAY_ADDRESS", address)
        stdin = head.stdin

        def lose() -> None:
            stdin.write("lose\n")
            stdin.flush()

        yield lose
        import ray

        ray.shutdown()  # before the cluster goes
        head.stdin.close()
        assert head.wait(timeout=60) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_shards_on_a_cluster_give_the_results_of_one_process(tmp_path: Path) -> None:
    sharded = _done(tmp_path / "two", "cells=4", "shards=auto", requests=600)
    assert sharded.speed.shards == 3  # the cluster's cores
    _done(tmp_path / "one", "cells=4", requests=600)
    _equal(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_a_lost_machine_costs_its_shards_alone(tmp_path: Path, cluster: Callable[[], None]) -> None:
    import ray

    requests, seen = 1_000_000, list[float]()

    def on_progress(done: float) -> None:
        if done > 0 and not any(seen):
            cluster()
            while sum(node["Alive"] for node in ray.nodes()) == 3:
                time.sleep(0.1)
        seen.append(done)

    chosen = [*FLEET, "cells=4", f"workload.requests={requests}"]
    setup = build(load([*chosen, "shards=4", f"folder={tmp_path / 'two'}"]))
    execute(setup, on_progress=on_progress)
    assert next(done for done in seen if done) < 0.8 * requests  # it was in the middle
    execute(build(load([*chosen, f"folder={tmp_path / 'one'}"])))
    _equal(tmp_path / "one", tmp_path / "two")
