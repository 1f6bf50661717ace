"""A step's machine code, run without a GPU: it is the model, wherever its kernels are placed."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.systems.program.xla import read_dump
from c2c.systems.tessera.ddg import graph_of, program_key
from tests.systems.program.xla.make import DECODE, SHAPE
from tests.systems.tessera.interpreter.placed import Placed, run_interpreted
from tests.systems.tessera.step import alone, arguments, step

BF16 = np.dtype(ml_dtypes.bfloat16)


def test_the_interpreter_computes_what_the_model_does() -> None:
    from c2c.transformer import Cache, Reference, forward

    params, tokens, positions, k, v, tables = arguments()
    wanted, cache = forward(
        params, tokens, positions, Cache(k=k, v=v, tables=tables), SHAPE.model(),
        linear=Reference(), backend="reference",
    )  # fmt: skip
    logits = np.frombuffer(alone()[0], np.float32).reshape(wanted.shape)
    # Activations are rounded to 8 bits at some ten places of each layer, the largest of which
    # errors adds to the residual stream; a wrong operand gives differences of the order of 1.
    eps = float(ml_dtypes.finfo(BF16).eps)
    reach = np.abs(np.asarray(wanted)).max()
    assert np.abs(logits - np.asarray(wanted)).max() < 10 * SHAPE.layers * eps * reach / 4
    assert np.array_equal(logits.argmax(-1), np.asarray(wanted).argmax(-1))
    for mine, theirs, before in zip(alone()[1:], (cache.k, cache.v), (k, v), strict=True):
        new = np.frombuffer(mine, BF16).astype(np.float32)
        old = np.asarray(before).astype(np.float32).ravel()
        wanted_new = np.asarray(theirs).astype(np.float32).ravel()
        changed = np.nonzero(wanted_new != old)[0]
        assert np.abs(new - wanted_new).max() < 4 * eps * np.abs(wanted_new).max()
        # nothing but the new tokens' rows
        rows = {int(at) // SHAPE.head_dim for at in changed}
        assert {int(at) // SHAPE.head_dim for at in np.nonzero(new != old)[0]} == rows


@pytest.mark.parametrize(("seed", "gpus"), [(0, 2), (1, 4)])
def test_a_random_placement_changes_no_bit(seed: int, gpus: int) -> None:
    gpu_of = np.random.default_rng(seed).integers(0, gpus, len(step().touches))
    placed = step().placed(gpus)
    assert run_interpreted(placed, step().touches, [int(g) for g in gpu_of]) > 0
    assert step().outputs(placed) == alone()


def test_a_dependency_that_is_left_out_shows() -> None:
    """A launch's read that is not known is not sent: the result is another."""
    touches = list(step().touches)
    reader = next(
        e.target for e in step_graph().edges
        if step().xla.names[e.target].startswith("gemm") and e.target > 10
    )  # fmt: skip
    written = {part for touch in touches[:reader] for part in touch.writes}
    lost = next(part for part in touches[reader].reads if part in written)
    kept = tuple(part for part in touches[reader].reads if part != lost)
    touches[reader] = replace(touches[reader], reads=kept)
    placed = step().placed(2)
    run_interpreted(placed, touches, [int(k == reader) for k in range(len(touches))])
    assert step().outputs(placed)[0] != alone()[0]


def test_a_placement_must_be_over_gpus_that_are_there() -> None:
    with pytest.raises(SettingError, match="gpu_of"):
        run_interpreted(step().placed(1), step().touches, [1] * len(step().touches))
    with pytest.raises(SettingError, match="gpus=0"):
        Placed(step().xla.program, 0, step().kernels)


def step_graph():
    return graph_of(step().touches, step().xla.carried)


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_edges_are_xlas_own(trips: int) -> None:
    """Two sources: machine code and slices of memory here, definitions and uses in HLO there."""
    from c2c.systems.tessera.touches import touches_of

    xla = read_dump(DECODE, trips=trips)
    graph = graph_of(touches_of(xla.program, step().kernels), xla.carried)
    assert graph.pairs == xla.def_use
    assert len(graph.edges) > graph.launches
    assert not graph.opaque
    # each half of the cache goes from its last writer to its first reader of the next step
    assert len(graph.carried) == 2
    for last, first, nbytes in graph.carried:
        assert nbytes == xla.carried[0].nbytes
        assert last > first


def test_reads_and_writes_are_operands_and_results() -> None:
    xla = step().xla
    for touch, operands, results in zip(step().touches, xla.operands, xla.results, strict=True):
        assert set(touch.reads) == set(operands)
        assert set(touch.writes) == set(results)


def test_programs_are_known_by_what_they_are() -> None:
    one, other = step().xla.program, read_dump(DECODE).program
    assert program_key(one) == program_key(other)
    assert program_key(read_dump(DECODE, trips=2).program) != program_key(one)
