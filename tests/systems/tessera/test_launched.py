"""A step in graphs over several devices: what is sent, and that no bit differs."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.cost.kernel_graph import timed_gpus
from c2c.errors import SettingError
from c2c.systems.program import Emulated, Program, Slice
from c2c.systems.program.xla import stated_kernels
from c2c.systems.tessera import (
    Gpus,
    StepGraphs,
    Touch,
    plan,
    program_work,
    recording_of,
    running_on,
    schedule,
)
from tests.systems.tessera.step import step

CELLS = [Slice(buffer, 8 * k, 8) for buffer in (0, 1) for k in range(4)]
PARTS = [*CELLS, Slice(0, 0, 32), Slice(1, 4, 16)]


@st.composite
def touched(draw: st.DrawFn) -> list[Touch]:
    some = st.lists(st.sampled_from(PARTS), max_size=3, unique=True).map(tuple)
    return draw(st.lists(st.builds(Touch, some, some), min_size=1, max_size=10))


@given(touched(), st.randoms(use_true_random=False), st.integers(1, 3))
def test_every_read_finds_the_newest_version(
    touches: list[Touch], draw: random.Random, count: int
) -> None:
    """Bytes have the number of their last writer; every GPU has its own memory."""
    gpu_of = [draw.randrange(count) for _ in touches]
    made = schedule(touches, gpu_of, count, outputs=PARTS, carried=PARTS)
    truth: dict[tuple[int, int], int] = {}
    memory: list[dict[tuple[int, int], int]] = [{} for _ in range(count)]

    def cells(part: Slice) -> list[tuple[int, int]]:
        return [(part.buffer, part.offset + k) for k in range(part.nbytes)]

    def sent(sends: Sequence[object]) -> None:
        for send in sends:
            for cell in cells(send.part):
                memory[send.target][cell] = memory[send.source][cell]

    order = []
    for segment in made.segments:
        sent(segment.sends)
        for number in segment.launches:
            order.append(number)
            for part in touches[number].reads:
                assert all(memory[segment.gpu].get(c) == truth.get(c) for c in cells(part))
            for part in touches[number].writes:
                for cell in cells(part):
                    truth[cell] = memory[segment.gpu][cell] = number
    assert order == list(range(len(touches)))
    sent(made.last)
    assert all(memory[0].get(c) == truth.get(c) for part in PARTS for c in cells(part))
    readers = {(g, c) for g, t in zip(gpu_of, touches, strict=True) for p in t.reads
               for c in cells(p)}  # fmt: skip
    assert all(memory[g].get(c) == truth.get(c) for g, c in readers)


def test_a_send_holds_its_version_until_it_has_completed() -> None:
    a, b = CELLS[:2]
    touches = [Touch((), (a,)), Touch((a,), (b,)), Touch((), (a,))]
    made = schedule(touches, [0, 1, 0], 2)
    assert [s.holds for s in made.segments] == [(), (), (1,)]
    assert not schedule([*touches[:2], Touch((), (CELLS[2],))], [0, 1, 0], 2).segments[2].holds


def test_a_placement_must_fit() -> None:
    with pytest.raises(SettingError, match="gpu_of"):
        schedule([Touch((), ())], [1], 1)


@functools.cache
def program() -> Program:
    """The fixture's step, whose kernels an emulated device can run."""
    return replace(step().xla.program, kernels=stated_kernels(step().xla))


def left_by(gpu_of: list[int], count: int, touches: Sequence[Touch] | None = None) -> list[bytes]:
    """Results of two steps, over emulated devices."""
    devices = [Emulated(seed) for seed in range(count)]
    running = [running_on(device, program()) for device in devices]
    for each in running:
        for number, buffer in enumerate(program().buffers):
            if not buffer.content:
                each.device.write(each.addresses[number], bytes(buffer.nbytes))
    carried = step().xla.carried
    made = StepGraphs.capture(running, devices, touches or step().touches, gpu_of, carried)
    for _ in range(2):
        made.run()
    made.close()
    return [devices[0].read(running[0].at(part), part.nbytes) for part in program().outputs]


@functools.cache
def alone() -> list[bytes]:
    return left_by([0] * len(step().touches), 1)


@pytest.mark.parametrize(("seed", "count"), [(0, 2), (1, 3)])
def test_a_split_step_leaves_what_one_graph_leaves(seed: int, count: int) -> None:
    draw = random.Random(seed)
    assert left_by([draw.randrange(count) for _ in step().touches], count) == alone()


def test_a_plan_of_machine_code_runs() -> None:
    """PTX, graph, plan, graphs of two devices: the whole way, and no bit differs."""
    gpus = timed_gpus("a100_80", "l40s")
    work = program_work(step().xla, step().touches, gpus, tokens=4)
    near = Gpus.alike(("a100_80", "l40s"), gbps=2000.0, latency_s=1e-8)
    made = plan(work, near, "throughput", gap=0.02)
    assert made.cuts > 3
    assert made.objective_s < 0.9 * work.times.sum(0).min()
    assert left_by(list(made.gpu_of), 2) == alone()
    assert sum(w.nbytes for w in work.weights) >= sum(p.nbytes for p in step().xla.carried)


def test_a_launch_of_unknown_memory_stays_at_home() -> None:
    touches = list(step().touches)
    every = tuple({*touches[20].reads, *touches[20].writes})
    touches[20] = Touch(every, every, ("an address that comes from no parameter",))
    gpus = timed_gpus("a100_80", "l40s")
    work = program_work(step().xla, touches, gpus, tokens=4, home=1)
    assert work.pinned == {20: 1}
    near = Gpus.alike(("a100_80", "l40s"), gbps=2000.0, latency_s=1e-8)
    assert plan(work, near, "latency").gpu_of[20] == 1


def test_a_send_that_is_left_out_shows() -> None:
    touches = list(step().touches)
    gpu_of = [int(k >= 30) for k in range(len(touches))]
    written = {part for touch in touches[:30] for part in touch.writes}
    reader = next(k for k in range(30, len(touches)) if written & set(touches[k].reads))
    kept = tuple(part for part in touches[reader].reads if part not in written)
    touches[reader] = replace(touches[reader], reads=kept)
    assert left_by(gpu_of, 2, touches) != alone()


def test_recording_kernels_leave_the_same_and_their_slices() -> None:
    recording = recording_of(program(), step().kernels)
    device = Emulated(7)
    plain, twin = running_on(device, program()), running_on(device, recording.program)
    for each in (plain, twin):
        for number, buffer in enumerate(program().buffers):
            if not buffer.content:
                device.write(each.addresses[number], bytes(buffer.nbytes))
        for number in range(len(program().launches)):
            each.launch(number)
    for part in program().outputs:
        assert device.read(plain.at(part), part.nbytes) == device.read(twin.at(part), part.nbytes)
    rows = device.read(twin.at(recording.intervals), recording.intervals.nbytes)
    seen = recording.seen(rows, twin.addresses)
    assert len(seen) > 300
    assert all(each.is_inside for each in seen)
    # with another's addresses nothing would be
    assert not any(each.is_inside for each in recording.seen(rows, plain.addresses))
