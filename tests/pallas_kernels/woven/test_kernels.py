"""`send`, `poll` and `receive` step by step on a CPU, against float64."""

from __future__ import annotations

import inspect
import mmap
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels import KernelUnavailable, device, missing
from pallas_kernels.attention import DecodeConfig, decode_attention
from pallas_kernels.host_memory import to_host
from pallas_kernels.mosaic import interpret_params
from pallas_kernels.woven import (
    Exchange,
    Receiver,
    SendConfig,
    Sender,
    Shared,
    Slot,
    SlotShape,
    Status,
    TaskFailed,
    poll,
    receive,
    send,
)
from pallas_kernels.woven.exchange import Looked, Polls, as_word
from tests.pallas_kernels.attention.cases import Case, Paged, decoding, paged
from tests.pallas_kernels.interpreting import races_found, reset, within
from tests.tiers import tiered

WRAPS = 2**32 - 2
SENDS = SendConfig(cluster=2, stages=2)


@dataclass
class Pair:
    """Both sides of an exchange, and a pool of so many layers whose newest tokens are missing."""

    case: Case
    page: int = 16
    splits: int = 1
    outstanding: int = 1
    layers: int = 1
    rows: int = 0  # of what is shared; by default those of the case
    first: int = WRAPS
    whole: list[Paged] = field(init=False)  # each layer's pages once the newest tokens are there
    cases: list[Case] = field(init=False)
    sender: Any = field(init=False)
    receiver: Any = field(init=False)

    def __post_init__(self) -> None:
        others = (replace(self.case, seed=layer) for layer in range(1, self.layers))
        self.cases = [self.case, *others]
        self.whole = [paged(case, self.page, seed=3, stray=-1) for case in self.cases]
        tables, lengths = self.whole[0].tables, self.whole[0].arguments[-1]
        slot = SlotShape(
            rows=self.rows or len(lengths), heads=self.case.heads, kv_heads=self.case.kv_heads,
            head_dim=self.case.dim, dtype=self.case.dtype, outstanding=self.outstanding,
            pages=tables.shape[1],
        )  # fmt: skip
        self.exchange = Exchange(slot=slot, splits=self.splits)
        self.stride = len(self.whole[0].k_pages)
        self.shared = self.exchange.new(first=self.first)
        self.shared.publish(tables, lengths)
        self.sender = self.exchange.sender(first=self.first)
        self.receiver = self.exchange.receiver(first=self.first)
        self.pools = [self.pool(name, without_newest=True) for name in ("k_pages", "v_pages")]

    def pool(self, name: str, *, without_newest: bool = False) -> np.ndarray:
        pool = np.concatenate([getattr(layer, name) for layer in self.whole])
        for layer in range(self.layers) if without_newest else ():
            for place in self.newest():
                pool[(place[0] + layer * self.stride, place[1])] = np.nan
        return pool

    def newest(self) -> list[tuple[int, int]]:
        return [
            (self.whole[0].tables[row, (length - 1) // self.page], (length - 1) % self.page)
            for row, length in enumerate(self.case.row_lengths)
            if length
        ]

    def payload(self, layer: int) -> tuple[np.ndarray, ...]:
        """Queries, and newest keys and values; those of a row without tokens are never used."""
        q, k, v = self.cases[layer].arrays
        at = np.maximum(np.array(self.case.row_lengths) - 1, 0)
        new = [array[np.arange(len(at)), at] for array in (k, v)]
        return q[:, 0], *new

    def send(self, layer: int, **options: Any) -> bool:
        sent = within(
            lambda: send(
                self.shared, self.sender, *self.payload(layer),
                **{"config": SENDS, "backend": "interpret", **options},
            )
        )  # fmt: skip
        self.shared, self.sender = sent.shared, sent.state
        return bool(sent.went)

    def poll(self, **options: Any) -> np.ndarray:
        windows = None if self.case.window is None else [self.case.window] * self.layers
        config = DecodeConfig(stages=2, splits=self.splits)
        polled = within(
            lambda: poll(
                self.shared, self.receiver, *self.pools,
                windows=None if windows is None else np.array(windows, np.int32),
                layers=self.layers, stride=self.stride, config=config, backend="interpret",
                **options,
            )
        )  # fmt: skip
        self.shared, self.receiver = polled.shared, polled.state
        self.pools = [polled.k_pages, polled.v_pages]
        return np.asarray(polled.state)[:, Polls.LOOKED]

    def receive(self, **options: Any) -> tuple[np.ndarray, list[int]]:
        got = within(lambda: receive(self.shared, self.sender, backend="interpret", **options))
        self.sender = got.state
        return np.asarray(got.out), np.asarray(got.status).tolist()

    def in_numpy(self) -> Shared:
        self.shared = jax.tree.map(np.array, self.shared)
        return self.shared

    def appended(self) -> None:
        """Every newest row is there, and no other bit of the pools has changed."""
        for name, pool in zip(("k_pages", "v_pages"), self.pools, strict=True):
            np.testing.assert_array_equal(
                np.asarray(pool).view(np.uint8), self.pool(name).view(np.uint8)
            )


def some(case: Case, rows: slice, lengths: tuple[int, ...] | None = None) -> Case:
    """Return some rows of a case, with the numbers that they have there."""
    lengths = lengths or case.row_lengths[rows]
    part = replace(case, offsets=tuple(n - 1 for n in lengths), lengths=lengths)
    object.__setattr__(part, "arrays", tuple(array[rows] for array in case.arrays))
    return part


SIXTEENS = decoding((150, 60), 192, heads=6, kv_heads=2)
SHAPES = {
    "one row, one token": (decoding((1,), 64), 16, 1),
    "lengths 0, 1, ends of pages": (decoding((0, 1, 16, 17), 64, heads=4, kv_heads=2), 16, 2),
    "splits, one of them empty": (SIXTEENS, 16, 3),
    "window": (replace(SIXTEENS, window=70), 16, 3),
    "window of one": (replace(SIXTEENS, window=1), 32, 1),
    "pages of 32, 8 heads a KV head": (decoding((128, 161), 192, heads=8), 32, 2),
    "pages of 64, one head each": (decoding((64, 65), 128, heads=2, kv_heads=2), 64, 1),
    "pages of 128, 16 heads a KV head": (decoding((200,), 256, heads=16), 128, 2),
    "128 wide, float16": (decoding((130,), 192, heads=8, dim=128, dtype="float16"), 64, 1),
}  # fmt: skip
QUICK = ("lengths 0, 1, ends of pages", "window", "128 wide, float16")


@pytest.mark.parametrize(
    ("case", "page", "splits"), tiered(SHAPES.values(), *(SHAPES[k] for k in QUICK)),
    ids=SHAPES.keys(),
)  # fmt: skip
def test_a_task(case: Case, page: int, splits: int) -> None:
    pair = Pair(case, page, splits)
    assert (pair.poll() == Looked.NOTHING).all()
    assert pair.send(0)
    assert (pair.poll() == Looked.TOOK).all()
    out, status = pair.receive(looks=2)
    assert status == [Status.DONE] * len(case.row_lengths)
    assert case.exact(merges=splits).worst(out[:, None]) <= 1
    pair.appended()
    assert (np.asarray(pair.shared.done) == as_word(WRAPS + 1)).all()
    assert (pair.poll() == Looked.NOTHING).all()
    pair.appended()


@pytest.mark.parametrize("outstanding", tiered([1, 2, 3, 4], 2))
def test_tasks_of_layers_outstanding_at_once_with_numbers_that_wrap(outstanding: int) -> None:
    case = decoding((5, 33), 64, heads=2)
    pair = Pair(case, outstanding=outstanding, layers=4)
    for begin in range(0, 6, outstanding):
        tasks = [task % 4 for task in range(begin, min(begin + outstanding, 6))]
        for layer in tasks:
            assert pair.send(layer)
        before = pair.in_numpy()
        if len(tasks) == outstanding:
            assert not pair.send(0)  # as many are outstanding as may be: nothing is written
            for name in pair.exchange.shapes():
                a, b = (np.asarray(getattr(of, name)) for of in (before, pair.shared))
                np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))
        assert set(np.asarray(pair.receiver)[:, Polls.LAYER]) == {begin % 4}
        for _ in tasks:
            assert (pair.poll() == Looked.TOOK).all()
        assert (pair.poll() == Looked.NOTHING).all()
        for layer in tasks:
            out, status = pair.receive()
            assert status == [Status.DONE] * 2
            assert pair.cases[layer].exact().worst(out[:, None]) <= 1
        assert pair.receive()[1] == [Status.TIME_OUT] * 2
        pair.sender = np.array(pair.sender)
        pair.sender[2:4] -= [1, 1]  # that wait is given up
        pair.sender[3] %= outstanding
    pair.appended()


@pytest.mark.parametrize("ratio", tiered([0.4, 1.0], 0.4))
def test_a_share_of_a_batch_away_gives_the_whole_batch(ratio: float) -> None:
    """Fewer rows than what is shared can hold; own rows beside, joined in batch order."""
    case = decoding((20, 7, 33, 50, 1), 64, heads=4, kv_heads=2)
    away = round(ratio * 5)
    pair = Pair(some(case, slice(away)), rows=5)
    assert pair.send(0)
    pair.poll()
    out, status = pair.receive(rows=away)
    assert status == [Status.DONE] * 5
    assert (out[away:] == 0).all()
    pair.appended()
    parts = [out[:away]]
    if away < 5:
        own = paged(some(case, slice(away, None)), 16).arguments
        parts.append(np.asarray(decode_attention(*own, backend="reference")))
    assert case.exact().worst(np.concatenate(parts)[:, None]) <= 1


def test_each_cta_has_a_number_of_its_own() -> None:
    """Some see a task one look later than others: each does it once."""
    pair = Pair(decoding((40, 20), 64, heads=4, kv_heads=2), splits=2)
    assert pair.send(0)
    early = np.arange(pair.exchange.ctas) % 3 == 0
    pair.receiver = np.array(pair.receiver)
    pair.receiver[early, Polls.ANSWERED] += 1  # have done it
    looked = pair.poll()
    np.testing.assert_array_equal(looked, np.where(early, Looked.NOTHING, Looked.TOOK))
    np.testing.assert_array_equal(
        np.asarray(pair.shared.done), np.where(early, as_word(WRAPS), as_word(WRAPS + 1))
    )
    assert pair.receive()[1] == [Status.TIME_OUT] * 2  # not all parts are there


def test_what_goes_wrong_is_told_by_status() -> None:
    case = decoding((20, 33, 8), 64)
    pair = Pair(case)
    pair.in_numpy().table[1, 2] = -1  # no block for the newest token
    assert pair.send(0)
    assert (pair.poll() == Looked.TOOK).all()
    out, status = pair.receive()
    assert status == [Status.DONE, Status.NO_BLOCKS, Status.DONE]
    assert (out[1] == 0).all()
    assert some(case, slice(None), (20, 0, 8)).exact().worst(out[:, None]) <= 1

    assert pair.send(0)
    pair.in_numpy().version[:] += 1
    pools = [np.array(pool) for pool in pair.pools]
    assert (pair.poll() == Looked.TOOK).all()
    assert pair.receive()[1] == [Status.OTHER_TABLE] * 3
    for old, new in zip(pools, pair.pools, strict=True):
        np.testing.assert_array_equal(old.view(np.uint8), np.asarray(new).view(np.uint8))

    for jump in (-1, 2):
        before = pair.in_numpy()
        task = int(before.task[0])
        before.task[:] = as_word(task + jump)
        old, state = before, np.asarray(pair.receiver)
        assert (pair.poll() == Looked.JUMPED).all()
        for name in pair.exchange.shapes():
            a, b = (np.asarray(getattr(of, name)) for of in (old, pair.shared))
            np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))
        np.testing.assert_array_equal(state[:, :3], np.asarray(pair.receiver)[:, :3])
        pair.in_numpy().task[:] = as_word(task)
    for jump in (-5, 5):  # an answer that cannot be is none
        pair.in_numpy().done[:] += jump
        assert set(pair.receive()[1]) == {Status.TIME_OUT}
        pair.in_numpy().done[:] -= jump


def test_words_and_rows_are_those_of_a_slot(tmp_path: Path) -> None:
    pair = Pair(decoding((5, 33), 64, heads=2), outstanding=2)
    shape, q = pair.exchange.slot, pair.payload(0)[0]
    with Slot.create(tmp_path / "slot", shape, first=WRAPS) as slot:
        sender, receiver = Sender(slot), Receiver(slot)
        sender.publish(pair.whole[0].tables, pair.whole[0].arguments[-1])
        for number in range(3):
            sender.send(*pair.payload(0))
            assert pair.send(0)
            shared, lane = pair.in_numpy(), number % 2
            assert slot.task.load() == int(shared.task.view(np.uint32)[0])
            np.testing.assert_array_equal(slot.table, shared.table)
            np.testing.assert_array_equal(slot.lengths, shared.lengths)
            np.testing.assert_array_equal(slot.lanes[lane].asked, shared.asked[lane])
            for name in ("q", "k", "v"):
                np.testing.assert_array_equal(
                    getattr(slot.lanes[lane], name), getattr(shared, name)[lane]
                )
            if number == 2:  # the table changes while a task is outstanding
                slot.version.store(slot.version.load() + 1)
                shared.version[:] += 1
                assert receiver.poll() is None
            else:
                assert receiver.poll() is not None
                receiver.answer(q)
            assert (pair.poll() == Looked.TOOK).all()
            shared = pair.in_numpy()
            assert set(shared.done.view(np.uint32).tolist()) == {slot.completion.load()}
            assert set(shared.status[lane].tolist()) == {int(slot.lanes[lane].status[0])}
            status = pair.receive()[1]
            if number == 2:
                with pytest.raises(TaskFailed) as failed:
                    sender.collect()
                assert status == [failed.value.status] * 2
            else:
                assert sender.collect() is not None
                assert status == [Status.DONE] * 2


def test_what_is_shared_may_be_in_host_memory() -> None:
    pair = Pair(decoding((5, 33), 64))
    pair.shared = jax.tree.map(to_host, pair.shared)
    assert pair.send(0)
    assert (pair.poll() == Looked.TOOK).all()
    assert pair.receive()[1] == [Status.DONE] * 2


def test_what_is_shared_lies_in_pages() -> None:
    exchange = Pair(decoding((5, 33), 64)).exchange
    pages = mmap.mmap(-1, exchange.nbytes)
    shared, other = exchange.new(pages, first=7), exchange.over(pages)
    shared.publish(np.full((1, 4), 9, np.int32), np.array([3], np.int32))
    assert (other.table == [[9] * 4, [-1] * 4]).all()
    assert other.lengths.tolist() == [3, 0]
    assert (int(other.task[0]), int(other.version[0])) == (7, 1)
    starts = [getattr(other, name).ctypes.data for name in exchange.shapes()]
    assert all(start % 128 == 0 for start in starts)
    with pytest.raises(ValueError, match="pages=16: expected"):
        exchange.over(bytes(16))


def test_no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pallas_kernels.woven.api.interpret_settings", lambda _: interpret_params(detect_races=True)
    )
    pair = Pair(decoding((70,), 128, heads=4), splits=2)
    try:
        for step in (lambda: pair.send(0), pair.poll, pair.receive):
            step()
            assert not races_found()
            reset()
    finally:
        reset()


def test_unfinished_rows_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The positive control of the append: without it the newest key is NaN."""
    monkeypatch.setattr("pallas_kernels.woven.sm90._store_row", lambda *_: None)
    pair = Pair(decoding((21,), 64, dim=128))
    pair.send(0)
    pair.poll()
    assert np.isnan(pair.receive()[0].astype(np.float32)).all()


@settings(max_examples=4)
@given(
    lengths=st.tuples(*[st.integers(0, SIXTEENS.keys)] * 2),
    window=st.none() | st.integers(1, 256),
    first=st.integers(0, 2**32 - 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_task(lengths: tuple[int, ...], window: int | None, first: int, seed: int) -> None:
    offsets = tuple(length - 1 for length in lengths)
    case = replace(SIXTEENS, offsets=offsets, lengths=lengths, window=window, seed=0)
    pair = Pair(case, 16, 3, first=first)
    assert pair.send(0)
    pair.poll()
    out, status = pair.receive()
    assert status == [Status.DONE] * 2
    assert case.exact(merges=3).worst(out[:, None]) <= 1
    pair.appended()


def test_sm90_says_what_is_missing() -> None:
    if not missing("sm90", device()):
        pytest.skip("this device runs sm90")
    pair = Pair(decoding((5,), 64))
    with pytest.raises(KernelUnavailable, match="sm90"):
        receive(pair.shared, pair.sender, backend="sm90")


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (send, {"shared": 3}, "shared='int': expected Shared"),
    (send, {"q": np.zeros((2, 3, 64), np.float16)}, r"q=.*: expected \[N, 4, 64\] of bfloat16"),
    (send, {"rows": 0}, "rows=0: expected 1 to 2"),
    (send, {"rows": 3}, "rows=3: expected 1 to 2"),
    (send, {"state": np.zeros(4, np.int32)}, r"state=.*: expected int32 of shape \(5,\)"),
    (send, {"backend": "cuda"}, "backend='cuda': expected one of"),
    (poll, {"windows": 0}, "windows=0: expected from 1"),
    (poll, {"layers": 0}, "layers=0: expected a whole number above 0"),
    (poll, {"stride": 0}, "stride=0: expected a whole number above 0"),
    (poll, {"layers": 1000}, "layers=1000: expected pages behind 999, of"),
    (poll, {"v_pages": np.zeros((1, 16, 2, 64), np.float16)}, "v_pages"),
    (poll, {"state": np.zeros((1, 4), np.int32)}, r"state=.*: expected int32 of shape \(4, 4\)"),
    (poll, {"config": DecodeConfig(splits=2),},
     "splits=2: expected 1 as in shared.out"),
    (receive, {"rows": 3}, "rows=3: expected 1 to 2"),
    (receive, {"looks": 0}, "looks=0: expected a whole number above 0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "change", "message"), WRONG)
def test_wrong_use(call: Any, change: dict[str, Any], message: str) -> None:
    pair = Pair(decoding((5, 33), 64, heads=4, kv_heads=2))
    q, k, v = pair.payload(0)
    given_to: dict[Any, dict[str, Any]] = {
        send: {"state": pair.sender, "q": q, "k": k, "v": v},
        poll: {"state": pair.receiver, "k_pages": pair.pools[0], "v_pages": pair.pools[1]},
        receive: {"state": pair.sender},
    }
    arguments = {"shared": pair.shared, "backend": "interpret", **given_to[call], **change}
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(call)(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "heads=3: expected a multiple of kv_heads=2"),
        ({"heads": 24}, "heads=24: expected fewer than 8 or a multiple of 8 a KV head, not 12"),
        ({"head_dim": 96}, "head_dim=96: expected 64 or 128"),
        ({"dtype": "float32"}, "dtype='float32': expected one of bfloat16, float16"),
        ({"page": 48}, "page=48: expected 16, 32 or a multiple of 64"),
        ({"rows": 0}, "rows=0: expected a whole number above 0"),
        ({"splits": 0}, "splits=0: expected 1 or more"),
    ],
)
def test_sizes_that_the_kernel_does_not_take(change: dict[str, Any], message: str) -> None:
    sizes = {"rows": 2, "heads": 4, "kv_heads": 2, "head_dim": 64, "page": 16, "splits": 1} | change
    page, splits = sizes.pop("page"), sizes.pop("splits")

    def polls() -> None:
        exchange = Exchange(slot=SlotShape(**sizes), splits=splits)
        pool = np.zeros((4, page, 2, sizes["head_dim"]), exchange.shapes()["k"][1])
        poll(exchange.new(), exchange.receiver(), pool, pool, backend="interpret")

    with pytest.raises(ValueError, match=message):
        polls()


def test_send_configurations() -> None:
    with pytest.raises(ValueError, match="cluster=3: expected 1, 2, 4 or 8"):
        SendConfig(cluster=3)
    with pytest.raises(ValueError, match="stages=1: expected a number from 2 to 32"):
        SendConfig(stages=1)
    pair = Pair(decoding((5, 33, 7), 64, heads=4, kv_heads=2))
    for cluster in (1, 4):
        pair.shared, pair.sender = pair.exchange.new(), pair.exchange.sender()
        assert pair.send(0, config=SendConfig(cluster=cluster, stages=3))
        np.testing.assert_array_equal(np.asarray(pair.shared.q)[0], pair.payload(0)[0])
