"""A model spread over pools that stand for devices, and changes of its spread while it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.systems.cocoserve.live.relayout import Relayout
from c2c.systems.cocoserve.live.spread import OverDevices, Spread, layer_bytes
from c2c.transformer import KvPool, Model, Runner, Sampling, Shapes, Step, block_elements, load
from c2c.transformer.layers.linear import Reference
from c2c.transformer.layers.pages import OutOfPages
from c2c.transformer.over_pools import Path
from tests.tiers import tiered
from tests.transformer.random_checkpoints import config_of, tensors_of, write

SHAPES = Shapes(rows=(4,), budgets=(16,), width=3, mixes=False)
LAYERS, NEW = 6, 20
PROMPTS = [[(5 * k + 3 * at) % 90 for at in range(length)] for k, length in enumerate((3, 16, 60))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    config = config_of("llama") | {"num_hidden_layers": LAYERS}
    return load(write(tmp_path_factory.mktemp("six"), config, tensors_of(config)), "float32")


@pytest.fixture(scope="module")
def alone(model: Model) -> list[list[int]]:
    return [model.generate(list(ids), NEW) for ids in PROMPTS]


def spread_over(model: Model, devices: int, blocks: int = 40, **more: Any) -> OverDevices:
    """Return a model over so many pools of this process's one device."""
    spec = model.spec
    pools = [
        KvPool(blocks, block_elements(spec) // LAYERS, dtype=np.float32) for _ in range(devices)
    ]
    return OverDevices(model.params, spec, model.linear, pools, SHAPES, **more)


def fill(runner: Runner, request: int) -> list[int]:
    """Submit a prompt and compute it; return its first token."""
    runner.submit(request, PROMPTS[request], new=NEW, sampling=Sampling())
    left, got = len(PROMPTS[request]), []
    while left:
        piece = min(left, 16)
        result = runner.finish(runner.start(Step(fill=(request, piece))))
        got, left = [token for _, token, _ in result.tokens], left - piece
    return got


def decode(runner: Runner, texts: dict[int, list[int]]) -> None:
    for request, token, _ in runner.finish(runner.start(Step(decode=runner.requests))).tokens:
        texts[request].append(token)


def held(over: OverDevices) -> list[int]:
    """Return the blocks that requests have on each device, by their own books."""
    result = [0] * len(over.pools)
    for kept in over.kept.values():
        for device, blocks in zip(kept.path, kept.blocks, strict=True):
            result[device] += len(set(blocks.tolist()))
    return result


def copied(layers: set[int], devices: tuple[int, ...]) -> Spread:
    """Return a spread with copies of layers, and a path over each."""
    copies = tuple((0, *devices) if n in layers else (0,) for n in range(LAYERS))
    paths = [tuple(d if n in layers else 0 for n in range(LAYERS)) for d in (0, *devices)]
    return Spread(copies, tuple(paths))


@pytest.mark.parametrize(
    ("layers", "devices", "changes", "transitions"),
    tiered(
        [({0, 1, 2, 5}, (1, 2), 4, 8), ({0, 1, 2, 5}, (1,), 4, 4), ({0, 1, 2, 3, 4, 5}, (1,), 2, 2),
         ({2}, (1,), 2, 2), (set(), (), 0, 0)],
        slow=1,
    ),
)  # fmt: skip
def test_changes_and_transitions_are_counted_as_defined(
    model: Model, alone: list[list[int]], layers: set[int], devices: tuple[int, ...],
    changes: int, transitions: int,
) -> None:  # fmt: skip
    over = spread_over(model, 3)
    runner = Runner(over, SHAPES)
    if layers:
        assert Relayout(over, copied(layers, devices)).advance() is not None
    texts = {request: fill(runner, request) for request in range(3)}
    assert len({kept.path for kept in over.kept.values()}) == 1 + len(devices)
    for _ in range(3):
        before = over.counts.copy()
        decode(runner, texts)
        assert over.counts["changes"] - before["changes"] == changes
        assert over.counts["transitions"] - before["transitions"] == transitions
    assert [texts[n] for n in range(3)] == [text[:4] for text in alone]


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_requests_and_blocks_survive_any_changes(
    model: Model, alone: list[list[int]], data: Any
) -> None:
    """Changes of any layers, given up, out of blocks or done, while requests end and go."""
    over = spread_over(model, 3, blocks=data.draw(st.sampled_from([26, 40])))
    runner = Runner(over, SHAPES)
    texts = {request: fill(runner, request) for request in range(3)}
    said: list[str] = []
    change, sizes = None, [layer_bytes(over.weights[n, 0]) for n in range(LAYERS)]
    while runner.requests:
        if change is None:
            on = st.sets(st.integers(0, 2), min_size=1)
            copies = tuple(tuple(sorted(data.draw(on))) for _ in range(LAYERS))
            path = st.tuples(*(st.sampled_from(devices) for devices in copies))
            homes: dict[int, Path] = {r: data.draw(path) for r in runner.requests}
            before = over.spread, {s: k.path for s, k in over.kept.items()}
            try:
                change = Relayout(
                    over, Spread(copies, (data.draw(path),)), homes,
                    piece_bytes=data.draw(st.sampled_from([1, 30_000, 10**9])),
                )  # fmt: skip
            except SettingError as error:
                said.append(str(error))
        else:
            try:
                moved = change.advance()
            except OutOfPages:
                moved, change = None, None
            if moved is not None:
                assert over.spread.copies == copies
                paths = {stay.request: kept.path for stay, kept in over.kept.items()}
                assert paths == {request: homes[request] for request in paths}
                change = None
            elif change is not None and data.draw(st.integers(0, 5)) == 0:
                change.cancel()
                change = None
            if moved is None:
                assert over.spread == before[0]
                assert all(before[1][stay] == kept.path for stay, kept in over.kept.items())
            if change is None:
                assert held(over) == [lease.held for lease in over.leases]
                assert over.on_give is None
            for d, pool in enumerate(over.pools[1:], 1):
                layers = [n for n, on in enumerate(over.spread.copies) if d in on]
                assert over.held_bytes(d) == pool.nbytes + sum(sizes[n] for n in layers)
        if not runner.missing(Step(decode=runner.requests)):
            decode(runner, texts)
        else:
            runner.cancel(runner.requests[-1])
        if data.draw(st.integers(0, 30)) == 0 and runner.requests:
            runner.cancel(data.draw(st.sampled_from(runner.requests)))
    if change is not None:
        change.cancel()
    assert all(" blocks'" in each and "free ones" in each for each in said)
    assert [lease.held for lease in over.leases] == [0, 0, 0]
    for request, text in texts.items():
        assert text == alone[request][: len(text)]


def test_pieces_are_no_larger_than_asked_and_nothing_changes_before_the_last(model: Model) -> None:
    over = spread_over(model, 2)
    runner = Runner(over, SHAPES)
    texts = {request: fill(runner, request) for request in range(3)}
    layer = layer_bytes(over.weights[0, 0])
    homes = dict.fromkeys(range(3), (1,) * LAYERS)
    change = Relayout(over, Spread.alone(LAYERS, 1), homes, piece_bytes=layer)
    pieces = 0
    while (moved := change.advance()) is None:
        assert over.spread == Spread.alone(LAYERS)
        assert {device for _, device in over.weights} == {0}
        decode(runner, texts)
        pieces += 1
    assert (moved.weight_bytes, moved.requests) == (LAYERS * layer, 3)
    assert moved.pieces >= LAYERS
    assert {device for _, device in over.weights} == {1}  # the source's are free
    assert over.leases[0].held == 0
    positions = sum(len(p) for p in PROMPTS) + 3 * pieces
    slot = 2 * model.spec.kv_heads * model.spec.head_dim * 4 * LAYERS
    assert moved.kv_bytes == positions * slot


def test_more_than_a_device_holds_is_refused_before_anything_moves(model: Model) -> None:
    over = spread_over(model, 2)
    layer = layer_bytes(over.weights[0, 0])
    room = over.pools[1].nbytes + 2 * layer
    over = spread_over(model, 2, capacity_bytes=[1e12, room])
    with pytest.raises(SettingError, match=f"{3 * layer} bytes.*at most {2 * layer} free bytes"):
        Relayout(over, copied({0, 1, 2}, (1,)))
    assert Relayout(over, copied({0, 1}, (1,))).advance() is not None
    assert over.held_bytes(1) == room


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Spread((), ((),)), "spread.copies"),
        (lambda: Spread(((0,), ()), ((0, 0),)), r"spread.copies\[1\]=\[\]"),
        (lambda: Spread(((0, 0),), ((0,),)), r"spread.copies\[0\]=\[0, 0\]"),
        (lambda: Spread(((0,),), ()), "spread.paths"),
        (lambda: Spread(((0,), (0,)), ((0, 1),)), r"spread.paths\[0\]=\[0, 1\]"),
        (lambda: Spread(((0,), (0,)), ((0,),)), r"spread.paths\[0\]=\[0\]"),
    ],
)
def test_spreads_that_cannot_be_are_refused(made: Callable[[], Spread], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        made()


def test_changes_that_cannot_be_are_refused(model: Model) -> None:
    over = spread_over(model, 2)
    for target, homes, message in (
        (Spread.alone(LAYERS - 1), {}, "spread.copies=5"),
        (Spread.alone(LAYERS, 2), {}, "spread.copies=2"),
        (Spread.alone(LAYERS), {3: (1,) * LAYERS}, r"homes\[3\]"),
    ):
        with pytest.raises(SettingError, match=message):
            Relayout(over, target, homes)
    with pytest.raises(SettingError, match="piece_bytes=0"):
        Relayout(over, Spread.alone(LAYERS), piece_bytes=0)
    under_way = Relayout(over, Spread.alone(LAYERS))
    with pytest.raises(SettingError, match="another change"):
        Relayout(over, Spread.alone(LAYERS))
    under_way.cancel()
    Relayout(over, Spread.alone(LAYERS)).cancel()
    with pytest.raises(SettingError, match="linear"):
        OverDevices(
            model.params, model.spec, Reference(by_layer=False), over.pools, SHAPES,
        )  # fmt: skip
