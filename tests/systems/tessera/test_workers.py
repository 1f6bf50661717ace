"""Placements run for real, over CPU devices: no bit differs; what is broken is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from c2c.errors import SettingError
from c2c.systems.tessera.pipeline import pipelined, steps_of
from c2c.systems.tessera.work import Gpus, Work
from c2c.systems.workers import (
    MODES,
    Pieces,
    Replicas,
    VirtualClock,
    chains_of,
    cut,
    routes_of,
    run_placed,
)

ROOT = Path(__file__).parents[3]


def place(count: int, seed: int, limit_s: float) -> dict[str, Any]:
    line = [sys.executable, "-m", "tests.systems.tessera.place", str(count), str(seed)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.mark.slow
def test_random_placements_change_no_bit() -> None:
    """Dense and with experts, decode and prefill; three steps, each with what the last one left."""
    said = place(12, 0, 600.0)
    assert said["equal"] == 12
    assert said["sent"] > 0
    assert min(said["pieces"]) > 8
    assert "waits for value" in said["lost"]
    assert "device 0 has but does not send" in said["lost"]
    assert said["late_differs"]
    assert said["failed"].startswith("piece 0.")
    # copies that are kept get what was written since; one update late they are another cache
    assert 0 < said["sent_deltas"] < said["sent_whole"]
    assert said["late_delta_differs"]
    assert "the last step's result" in said["refused"]


@pytest.mark.soak
def test_five_hundred_random_placements_change_no_bit() -> None:
    assert place(500, 1, 3000.0)["equal"] == 500


def pieces_of_two():
    def function(x: Any, y: Any) -> Any:
        return (x @ y) @ jnp.tanh(x)

    return cut(function, jnp.ones((3, 3)), jnp.ones((3, 3)))


def test_a_function_is_cut_at_its_products() -> None:
    pieces = pieces_of_two()
    assert [piece.name for piece in pieces.pieces] == ["0.dot_general", "1.dot_general"]
    assert [(e.source, e.target, e.nbytes) for e in pieces.transfers()] == [(0, 1, 36)]
    assert routes_of(pieces, [0, 0]) == {value: frozenset() for value in routes_of(pieces, [0, 0])}
    first = pieces.pieces[0].gives[0]
    assert routes_of(pieces, [0, 2])[first] == {2}


def test_modes_give_the_same_and_none_takes_one_request_at_a_time() -> None:
    pieces, device = pieces_of_two(), jax.devices()[0]
    requests = [[jnp.full((3, 3), n + 1.0), jnp.eye(3)] for n in range(5)]
    ran = {
        mode: run_placed(pieces, [0, 0], [device], requests, mode=mode)
        for mode in ("none", "naive", "priority")
    }
    for made in ran.values():
        assert [float(r[0][0, 0]) for r in made.results] == [
            float((x @ jnp.tanh(x))[0, 0]) for x, _ in requests
        ]
    assert [request for _, request, _ in ran["none"].order] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [request for _, request, _ in ran["priority"].order] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [request for _, request, _ in ran["naive"].order][:4] == [0, 1, 2, 3]


def writing() -> Pieces:
    """A step that writes a row into a cache and reads it."""

    def step(x: Any, at: Any, cache: Any) -> Any:
        written = cache.at[at].set(x @ x)
        return written.sum(0) @ x, written

    return cut(step, jnp.ones((3, 3)), jnp.zeros((1,), int), jnp.zeros((40, 3, 3)))


def test_an_update_is_the_value_before_with_what_was_written() -> None:
    pieces = writing()
    ((result, update),) = pieces.updates.items()
    assert update.operand == pieces.given[2]
    assert chains_of(pieces, {update.operand: result}) == {
        update.operand: ((update.operand,), (result,))
    }
    with pytest.raises(SettingError, match="carried"):
        chains_of(pieces, {pieces.given[2]: pieces.results[0]})


def test_a_copy_that_is_kept_gets_what_was_written_since() -> None:
    """Over one device twice, as two: whole at first, then a row each step; far behind, whole."""
    pieces, devices = writing(), jax.devices()[:1] * 2
    cache, first = pieces.given[2], jnp.zeros((40, 3, 3))
    replicas = Replicas(pieces, {cache: pieces.results[1]})
    whole, row = first.nbytes, 3 * 3 * 4 + 4
    count = len(pieces.pieces)
    writer = next(k for k, piece in enumerate(pieces.pieces) if pieces.results[1] in piece.gives)

    def step(n: int, gpu_of: list[int], before: Any) -> tuple[Any, int]:
        given = [jnp.full((3, 3), n + 1.0), jnp.array([n % 40]), before]
        ran = run_placed(pieces, gpu_of, devices, [given], replicas=[replicas])
        wanted = before.at[n % 40].set(given[0] @ given[0])
        assert (ran.results[0][1] == wanted).all()
        assert (ran.results[0][0] == wanted.sum(0) @ given[0]).all()
        sent = sum(s.nbytes for s in ran.sent if replicas.holds(s.value))
        return ran.results[0][1], sent

    here, there = [0] * count, [int(k > writer) for k in range(count)]
    left, sent = step(0, there, first)
    assert sent == whole
    left, sent = step(1, there, left)
    assert sent == row
    for n in (2, 3):
        left, sent = step(n, here, left)
        assert sent == 0
    left, sent = step(4, there, left)
    assert sent == 3 * row
    for n in range(5, 41):
        left, _ = step(n, here, left)
    _, sent = step(41, there, left)
    assert sent == whole


def chain_of(count: int) -> Pieces:
    """A product behind each other, each a piece."""

    def function(x: Any, y: Any) -> Any:
        for _ in range(count):
            x = jnp.tanh(x) @ y
        return x

    return cut(function, jnp.ones((3, 3)), jnp.ones((3, 3)))


def test_workers_with_pretended_times_pipeline_as_the_model_of_it_does() -> None:
    """Real pieces and sends of twelve requests; two at each device, times balanced but unlike."""
    pieces = chain_of(8)
    count = len(pieces.pieces)
    gpu_of = [k // 2 % 2 for k in range(count)]
    piece_s = [1.0, 3.0, 2.0, 0.5, 2.5, 1.5, 4.0, 1.5][:count]
    work = Work(
        names=tuple(piece.name for piece in pieces.pieces),
        times_s=tuple((s, s) for s in piece_s), transfers=pieces.transfers(),
    )  # fmt: skip
    gpus = Gpus.alike(("a", "b"), gbps=36e-9, latency_s=0.1)  # a second and a bit for each value
    busiest = max(sum(s for s, g in zip(piece_s, gpu_of, strict=True) if g == k) for k in (0, 1))
    requests = [[jnp.full((3, 3), n + 1.0), jnp.eye(3)] for n in range(12)]
    alone = run_placed(pieces, [0] * count, jax.devices()[:1], requests, mode="none").results
    share = {}
    for mode in MODES:
        clock = VirtualClock(piece_s, gpus.seconds)
        ran = run_placed(
            pieces, gpu_of, jax.devices()[:1] * 2, requests, mode=mode, in_flight=4, clock=clock,
            piece_s=piece_s,
        )  # fmt: skip
        assert all((a[0] == b[0]).all() for a, b in zip(ran.results, alone, strict=True))
        assert max(clock.busy_s.values()) == pytest.approx(12 * busiest)
        share[mode] = 12 * busiest / clock.now_s
        modelled = pipelined([steps_of(work, gpus, gpu_of)], [[0]] * 12, mode, 4).seconds
        # a worker ends the piece that it has begun, which the model interrupts or shares
        assert clock.now_s == pytest.approx(modelled, rel=1e-9 if mode == "none" else 0.1)
    assert share["none"] < 0.5 < share["naive"] <= share["priority"] < 1.0
    assert share["naive"] <= share["shortest"] < 1.0


def test_what_cannot_be_placed_is_refused() -> None:
    pieces, devices = pieces_of_two(), jax.devices()[:1]
    given = [[jnp.ones((3, 3)), jnp.ones((3, 3))]]
    for wrong, why in (
        ({"gpu_of": [0]}, "gpu_of"),
        ({"gpu_of": [0, 3]}, "gpu_of"),
        ({"mode": "fast"}, "mode='fast'"),
        ({"in_flight": 0}, "in_flight=0"),
        ({"mode": "shortest"}, "piece_s=None"),
        ({"mode": "shortest", "piece_s": [1.0, 2.0, 3.0]}, "piece_s=3"),
        ({"requests": [[jnp.ones((3, 3))]]}, "requests=1"),
    ):
        settings: dict[str, Any] = {"gpu_of": [0, 0], "requests": given, **wrong}
        with pytest.raises(SettingError, match=why):
            run_placed(
                pieces, settings.pop("gpu_of"), devices, settings.pop("requests"), **settings
            )
    with pytest.raises(SettingError, match="function"):
        cut(lambda x: x, jnp.ones(3))
