"""The slot's protocol: on threads and processes, with numbers that wrap, and what it tells."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from pallas_kernels.host_memory import PoolCorruptError, PoolError, PoolStaleError
from pallas_kernels.woven import Receiver, Sender, Slot, SlotError, SlotShape, Status, TaskFailed
from pallas_kernels.woven.words import _CODE, Word, ahead

ROOT = Path(__file__).parents[3]
WRAPS = 2**32 - 3


def small(outstanding: int = 1, dtype: str = "float32") -> SlotShape:
    return SlotShape(
        rows=3, heads=4, kv_heads=2, head_dim=8, dtype=dtype, outstanding=outstanding, pages=2
    )


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    with Slot.create(tmp_path / "slot", small(2), first=WRAPS) as made:
        yield made


def rows_of(shape: SlotShape, number: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Q, K and V that say of which task and row they are."""
    g = np.arange(rows, dtype=np.float32)[:, None, None] + 10.0 * number
    q, k, v = (
        np.broadcast_to(g + part, (rows, heads, shape.head_dim)).astype(np.float32)
        for part, heads in ((0.25, shape.heads), (0.5, shape.kv_heads), (0.75, shape.kv_heads))
    )
    return q, k, v


def computed(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    share = q.shape[1] // k.shape[1]
    mixed = np.repeat(k * np.float32(0.5) + v, share, axis=1)
    return q * np.float32(3.0) + mixed + lengths[:, None, None].astype(np.float32)


def publish(sender: Sender, rows: int, number: int) -> np.ndarray:
    lengths = np.arange(rows, dtype=np.int32) + number % 1000
    sender.publish(np.full((rows, 2), number % 1000, np.int32), lengths)
    return lengths


def drive(sender: Sender, tasks: int, seed: int, delays: float, deadline_s: float) -> None:
    """Send tasks, some outstanding, and check each result to the bit."""
    g = np.random.default_rng(seed)
    shape, sent, expected = sender.slot.shape, 0, []
    end = time.monotonic() + deadline_s
    lengths = publish(sender, 3, 0)
    while sender.collected < tasks:
        assert time.monotonic() < end
        if sent < tasks and sent - sender.collected < shape.outstanding:
            if sent == sender.collected and g.random() < 0.1:  # an iteration's end
                lengths = publish(sender, int(g.integers(1, 4)), sent)
            payload = rows_of(shape, sent % 100_000, len(lengths))
            assert sender.send(*payload) == sent
            expected.append(computed(*payload, lengths))
            sent += 1
        else:
            result = sender.collect()
            if result is None:
                time.sleep(0)
            else:
                np.testing.assert_array_equal(result, expected.pop(0))
        if delays and g.random() < delays:
            time.sleep(float(g.random()) * 1e-3)
    assert not expected
    assert sender.collect() is None


def serve(slots: list[Slot], tasks: int, seed: int, delays: float, deadline_s: float) -> list[int]:
    """Answer so many tasks of each slot, polled in turn; return how many each had."""
    g = np.random.default_rng(seed)
    ends = [Receiver(slot) for slot in slots]
    held: list[list[np.ndarray]] = [[] for _ in slots]
    end = time.monotonic() + deadline_s
    while any(r.answered < tasks for r in ends):
        assert time.monotonic() < end
        moved = False
        for receiver, results in zip(ends, held, strict=True):
            task = receiver.poll()
            if task is not None:
                assert task.number == receiver.taken - 1
                assert (task.pages[:, 0] == task.lengths[0]).all()
                results.append(computed(task.q, task.k, task.v, task.lengths))
            if results and (task is None or g.random() < 0.5):
                receiver.answer(results.pop(0))
                moved = True
            moved = moved or task is not None
            if delays and g.random() < delays:
                time.sleep(float(g.random()) * 1e-3)
        if not moved:
            time.sleep(0)
    assert all(receiver.poll() is None for receiver in ends)
    return [receiver.answered for receiver in ends]


def stress_threads(folder: Path, senders: int, outstanding: int, tasks: int, delays: float) -> None:
    with ExitStack() as stack:
        slots = [
            stack.enter_context(
                Slot.create(folder / f"slot-{k}", small(outstanding), first=2**32 - 7 - k)
            )
            for k in range(senders)
        ]
        failed: list[BaseException] = []

        def send(k: int) -> None:
            try:
                drive(Sender(slots[k]), tasks, k, delays, 600)
            except BaseException as error:  # noqa: BLE001 - told by the test
                failed.append(error)

        threads = [threading.Thread(target=send, args=(k,)) for k in range(senders)]
        for thread in threads:
            thread.start()
        answered = serve(slots, tasks, 99, delays, 600)
        for thread in threads:
            thread.join()
        assert not failed
        assert answered == [tasks] * senders


def stress_processes(folder: Path, senders: int, outstanding: int, tasks: int) -> None:
    paths = [folder / f"slot-{k}" for k in range(senders)]
    with ExitStack() as stack:
        slots = [
            stack.enter_context(Slot.create(path, small(outstanding), first=2**32 - 7 - k))
            for k, path in enumerate(paths)
        ]
        code = "import sys; from tests.pallas_kernels.woven.test_slot import other; other(sys.argv)"
        others = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(path), str(outstanding), str(tasks), str(k)],
                cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
            for k, path in enumerate(paths)
        ]  # fmt: skip
        try:
            assert serve(slots, tasks, 99, 0.001, 900) == [tasks] * senders
            assert [process.wait(60) for process in others] == [0] * senders
        finally:
            for process in others:
                process.kill()
                process.wait()


def other(arguments: list[str]) -> None:
    """Be a sender in a process of its own."""
    path, outstanding, tasks, seed = arguments[1:]
    with Slot.open(path, small(int(outstanding))) as opened:
        drive(Sender(opened), int(tasks), int(seed), 0.001, 900)


@pytest.mark.parametrize(("senders", "outstanding"), [(1, 1), (2, 3), (4, 4)])
def test_no_task_is_lost_or_doubled_between_threads(
    tmp_path: Path, senders: int, outstanding: int
) -> None:
    stress_threads(tmp_path, senders, outstanding, 60, 0.05)


def test_no_task_is_lost_or_doubled_between_processes(tmp_path: Path) -> None:
    stress_processes(tmp_path, 2, 3, 300)


@pytest.mark.parametrize("senders", [1, 2, 3, 4])  # with as many tasks outstanding
@pytest.mark.parametrize(
    ("by_threads", "by_processes"),
    [
        pytest.param(1_000, 20_000, marks=pytest.mark.slow),
        pytest.param(20_000, 230_000, marks=pytest.mark.soak),  # a million in all
    ],
)
def test_many_tasks(tmp_path: Path, senders: int, by_threads: int, by_processes: int) -> None:
    stress_threads(tmp_path, senders, senders, by_threads // senders, 0.001)
    (tmp_path / "processes").mkdir()
    stress_processes(tmp_path / "processes", senders, senders, by_processes // senders)


def test_payloads_of_llama_3_8b() -> None:
    shape = SlotShape(rows=64, heads=32, kv_heads=8, head_dim=128)
    assert (shape.sent_bytes, shape.returned_bytes) == (12_288, 8_192)
    assert shape.nbytes >= 64 * 20_480


def test_bits_of_bfloat16_go_through(tmp_path: Path) -> None:
    shape = small(dtype="bfloat16")
    with Slot.create(tmp_path / "slot", shape) as made, Slot.open(made.path, shape) as opened:
        sender, receiver = Sender(made), Receiver(opened)
        publish(sender, 2, 5)
        g = np.random.default_rng(0)
        q, k, v = (
            g.integers(0, 2**16, (2, heads, 8)).astype(np.uint16).view(made.lanes[0].q.dtype)
            for heads in (4, 2, 2)
        )
        sender.send(q, k, v)
        task = receiver.poll()
        assert task is not None
        assert [x.tobytes() for x in (task.q, task.k, task.v)] == [x.tobytes() for x in (q, k, v)]
        receiver.answer(task.q[::-1])
        result = sender.wait(1.0)
        assert result.tobytes() == q[::-1].tobytes()


def test_a_word_wraps_and_compares_by_difference(slot: Slot) -> None:
    word = Word(slot._pages.address + 128)
    word.store(2**32 + 5)
    assert word.load() == 5
    assert ahead(5, WRAPS) == 8


@pytest.mark.parametrize(
    ("machine", "instructions"),
    [("x86_64", ("movl\t%esi, (%rdi)", "movl\t(%rdi), %eax")),
     ("aarch64", ("stlr\tw1, [x0]", "ldar\tw0, [x0]"))],
)  # fmt: skip
def test_words_are_ordered_on_either_machine(machine: str, instructions: tuple[str, str]) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(f"{machine}-unknown-linux-gnu").create_target_machine()
    lines = [line.strip() for line in target.emit_assembly(llvm.parse_assembly(_CODE)).splitlines()]
    assert set(instructions) <= set(lines)


def test_a_counter_that_jumps_is_told(slot: Slot) -> None:
    sender, receiver = Sender(slot), Receiver(slot)
    publish(sender, 3, 0)
    slot.task.store(WRAPS - 4)
    with pytest.raises(SlotError, match="counter task jumped backwards by 4"):
        receiver.poll()
    slot.task.store(WRAPS + 3)
    with pytest.raises(SlotError, match="counter task jumped ahead by 3"):
        receiver.poll()
    sender.send(*rows_of(slot.shape, 0, 3))
    slot.completion.store(WRAPS - 1)
    with pytest.raises(SlotError, match="counter completion jumped backwards by 1"):
        sender.collect()


def test_a_table_of_another_version_is_told(slot: Slot) -> None:
    sender, receiver = Sender(slot), Receiver(slot)
    publish(sender, 3, 0)
    for _ in range(2):
        sender.send(*rows_of(slot.shape, 0, 3))
    slot.version.store(7)
    assert receiver.poll() is None
    assert receiver.poll() is None
    for number in range(2):
        with pytest.raises(TaskFailed, match=f"task {number}: status OTHER_TABLE"):
            sender.collect()
    publish(sender, 1, 1)
    sender.send(*rows_of(slot.shape, 2, 1))
    assert receiver.poll() is not None


def test_statuses_and_time_outs_are_told_by_name(slot: Slot) -> None:
    sender, receiver = Sender(slot), Receiver(slot)
    publish(sender, 3, 0)
    sender.send(*rows_of(slot.shape, 0, 3))
    assert receiver.poll() is not None
    receiver.fail(Status.NO_BLOCKS)
    with pytest.raises(TaskFailed, match="task 0: status NO_BLOCKS"):
        sender.wait(1.0)
    sender.send(*rows_of(slot.shape, 0, 3))
    with pytest.raises(TaskFailed, match="task 1: status TIME_OUT"):
        sender.wait(0.01)


def test_what_may_not_be_is_refused(slot: Slot) -> None:
    sender, receiver = Sender(slot), Receiver(slot)
    with pytest.raises(SlotError, match="the rows of the table"):
        sender.send(*rows_of(slot.shape, 0, 3))
    with pytest.raises(SlotError, match="no task is taken"):
        receiver.answer(np.zeros((3, 4, 8), np.float32))
    with pytest.raises(SlotError, match="table of 4 rows"):
        sender.publish(np.zeros((4, 2), np.int32), np.zeros(4, np.int32))
    publish(sender, 3, 0)
    q, k, v = rows_of(slot.shape, 0, 3)
    with pytest.raises(SlotError, match=r"k is float32\[3, 4, 8\]"):
        sender.send(q, q, v)
    for _ in range(2):
        sender.send(q, k, v)
    with pytest.raises(SlotError, match="2 tasks outstanding: collect one first"):
        sender.send(q, k, v)
    with pytest.raises(SlotError, match="2 tasks outstanding: expected none"):
        publish(sender, 3, 1)
    assert receiver.poll() is not None
    with pytest.raises(SlotError, match=r"result is float32\[3, 2, 8\]"):
        receiver.answer(k)


def test_a_file_that_is_no_such_slot_is_refused(slot: Slot, tmp_path: Path) -> None:
    with pytest.raises(SlotError, match="exists already"):
        Slot.create(slot.path, small(2))
    with pytest.raises(PoolStaleError, match="another shape"):
        Slot.open(slot.path, small(3))
    (tmp_path / "text").write_text("no slot")
    with pytest.raises(PoolCorruptError, match="is no slot"):
        Slot.open(tmp_path / "text", small())
    with pytest.raises(PoolError):
        Slot.open(tmp_path / "none", small())
    with pytest.raises(SlotError, match="rows=0"):
        SlotShape(rows=0, heads=1, kv_heads=1, head_dim=1)
    with pytest.raises(SlotError, match="dtype='float7'"):
        SlotShape(rows=1, heads=1, kv_heads=1, head_dim=1, dtype="float7")
