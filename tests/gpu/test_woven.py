"""Woven attention at real sizes through pinned host memory: both sides in one process."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from experiments.gpu import woven
from experiments.gpu.cases import Context
from pallas_kernels.woven import SendConfig, Status, poll, receive, send
from pallas_kernels.woven.exchange import Looked, Polls
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
    pair = woven._Pair(2, 2, CONTEXT)
    out, codes = pair.receive()
    assert (np.asarray(codes) == Status.TIME_OUT).all()
    assert (np.asarray(out, np.float32) == 0).all()
    assert (np.asarray(pair.poll())[:, Polls.LOOKED] == Looked.NOTHING).all()


def test_other_tasks_compile_nothing_and_what_is_shared_stays_where_it_is() -> None:
    pair = woven._Pair(4, 1, CONTEXT)
    launch = pair.launches("all three", SendConfig())
    jax.block_until_ready([launch(number) for number in range(2)])
    with compilations() as seen:
        outs = [np.asarray(launch(number)[0], np.float32) for number in range(20)]
    assert seen == []
    assert all((out == outs[0]).all() for out in outs)  # lanes come again, numbers wrap
    held = "pinned_host" if BACKEND == "sm90" else "device"
    assert pair.shared.q.sharding.memory_kind == held
    sent = send(pair.shared, pair.sender, *pair.payload, rows=1, backend=BACKEND)  # with checks
    assert bool(sent.went)
    got = receive(sent.shared, sent.state, rows=1, backend=BACKEND)
    assert np.asarray(got.status)[0] == Status.TIME_OUT
    polled = poll(sent.shared, pair.receiver, *pair.pools, backend=BACKEND)
    assert (np.asarray(polled.state)[:, Polls.LOOKED] == Looked.TOOK).all()
