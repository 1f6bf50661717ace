"""Woven attention at real sizes through pinned host memory: both sides in one process."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.gpu import woven
from experiments.gpu.cases import Context
from pallas_kernels.woven import Status, poll, receive, send
from pallas_kernels.woven.exchange import LOOKED, NOTHING
from tests.compilations import compilations
from tests.gpu.exact import BACKEND

pytestmark = [pytest.mark.gpu, pytest.mark.limit_s(60)]

SCALE: Any = "full" if BACKEND == "sm90" else "tiny"
CONTEXT = Context(backend=BACKEND, scale=SCALE)


@pytest.mark.parametrize(("rows", "splits"), [(1, 1), (1, 8), (8, 4), (64, 1), (128, 2)])
def test_results_are_those_of_decode_attention(rows: int, splits: int) -> None:
    rows = rows if BACKEND == "sm90" else min(rows, 2)
    (row,) = woven.measure({"what": "results", "rows": rows, "splits": splits}, CONTEXT)
    assert row["tasks"] == 6
    if splits == 1:
        assert row["same"] == row["elements"]


def test_nothing_is_waited_for_beyond_the_looks() -> None:
    pair = woven._pair(2, 2, CONTEXT)
    got = receive(pair.shared, pair.exchange.sender(first=woven._FIRST), looks=50, backend=BACKEND)
    assert np.asarray(got.status).tolist() == [Status.TIME_OUT] * 2
    assert (np.asarray(got.out, np.float32) == 0).all()
    polled = poll(
        pair.shared, pair.exchange.receiver(first=woven._FIRST), *pair.pools, backend=BACKEND
    )
    assert set(np.asarray(polled.state)[:, LOOKED].tolist()) == {NOTHING}


def test_other_tasks_compile_nothing_and_what_is_shared_stays_where_it_is() -> None:
    pair = woven._pair(4, 1, CONTEXT)
    launch = woven._round(pair, woven.SendConfig())
    jax.block_until_ready([launch(number) for number in range(2)])
    with compilations() as seen:
        outs = [np.asarray(launch(number), np.float32) for number in range(20)]
    assert seen == []
    assert all((out == outs[0]).all() for out in outs)  # lanes come again, numbers wrap
    held = "pinned_host" if BACKEND == "sm90" else "device"
    assert pair.shared.q.sharding.memory_kind == held
    sent = send(
        pair.shared, pair.exchange.sender(), *map(jnp.asarray, pair.payload), rows=1,
        backend=BACKEND,
    )  # fmt: skip
    assert bool(sent.went)
