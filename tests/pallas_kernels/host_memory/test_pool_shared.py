"""Many processes and one pool: one physical copy, one creator, cleanup."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from pallas_kernels.host_memory import PoolInUseError, SharedPool, TensorSpec, remove_pool
from tests.pallas_kernels.host_memory.processes import Other, opened

MIB = 1 << 20
SIZE = 32 * MIB
SPEC = {"w": TensorSpec(shape=(SIZE,), dtype="uint8")}
TOUCH_ALL = "int(pool.numpy('w')[::4096].sum(dtype='uint64'))"

FILL = """def fill(name, into): into[...] = 3"""
PLAN = f"spec = {{'w': TensorSpec(shape=({SIZE},), dtype='uint8')}}"


def fill(name: str, into: np.ndarray) -> None:
    into[...] = 3


def make(path: Path) -> SharedPool:
    return SharedPool.open_or_create(path, SPEC, fill)


def status(other: Other, field: str) -> int:
    """A figure of /proc/<pid>/status in bytes."""
    text = Path(f"/proc/{other.pid}/status").read_text("ascii")
    (line,) = [line for line in text.splitlines() if line.startswith(field + ":")]
    return 1024 * int(line.split()[1])


def mapped(pid: int, path: Path) -> dict[str, int]:
    """Figures of a file's mappings in /proc/<pid>/smaps in bytes, added up."""
    total: Counter[str] = Counter()
    for part in Path(f"/proc/{pid}/smaps").read_text("utf-8").split(str(path))[1:]:
        lines = part.partition("VmFlags")[0].splitlines()
        total.update(
            {x[0][:-1]: 1024 * int(x[1]) for x in map(str.split, lines) if x[2:] == ["kB"]}
        )
    return total


def test_three_processes_hold_one_physical_copy(path: Path) -> None:
    """Each has all pages resident; divided by their users they add up to one copy."""
    count = 3
    with make(path), ExitStack() as stack:
        others = [stack.enter_context(opened(path)) for _ in range(count)]
        own = [status(other, "RssAnon") for other in others]
        for other in others:
            assert other(TOUCH_ALL) == str(3 * SIZE // 4096)
        rss, pss = ([mapped(other.pid, path)[kind] for other in others] for kind in ("Rss", "Pss"))
        assert all(SIZE <= each <= SIZE + 2 * MIB for each in rss)
        assert SIZE - MIB <= sum(pss) <= SIZE + 2 * MIB
        for other, before in zip(others, own, strict=True):
            assert status(other, "RssAnon") - before < SIZE // 8
        # What is no sharing shows as such: a private copy is anonymous memory of its owner.
        copier = others[0]
        assert copier("private = pool.numpy('w').copy()") == "None"
        assert status(copier, "RssAnon") - own[0] > SIZE - MIB
        assert int(path.stat().st_blocks) * 512 <= SIZE + 2 * MIB  # whole huge pages


def test_jax_processes_share_the_pages_too(shm_path: Path) -> None:
    """A jax array over the pages adds nothing, and reads what is written to them."""
    with make(shm_path) as pool, opened(shm_path) as reader:
        assert reader("array = pool.array('w')") == "None"
        before = status(reader, "RssAnon")
        assert reader("int(array.numpy()[::4096].sum(dtype='uint64'))") == str(3 * SIZE // 4096)
        assert status(reader, "RssAnon") - before < SIZE // 8
        with shm_path.open("r+b") as file:
            file.seek(pool._header.entries["w"].offset + 5)
            file.write(bytes([77]))
        assert reader("int(array.numpy()[5])") == "77"
        assert "arrays of w are alive" in reader("pool.close()")
        assert reader.end() == 0  # also with an array alive


@pytest.mark.slow
def test_of_many_creators_one_creates(shm_path: Path) -> None:
    slow = "def fill(name, into): import time; made.append(name); time.sleep(0.3); into[...] = 3"
    starts = ("from pallas_kernels.host_memory import *", PLAN, "made = []", slow)
    create = f"pool = SharedPool.open_or_create({str(shm_path)!r}, spec, fill, wait_s=30)"
    with ExitStack() as stack:
        others = [stack.enter_context(Other(*starts)) for _ in range(3)]
        for other in others:
            other._process.stdin.write(create + "\n")  # all before any answers
            other._process.stdin.flush()
        assert [other._process.stdout.readline() for other in others] == ["None\n"] * 3
        assert sorted(other("made") for other in others) == ["['w']", "[]", "[]"]
        assert {other("int(pool.numpy('w').max())") for other in others} == {"3"}
        with pytest.raises(
            PoolInUseError,
            match=", ".join(str(pid) for pid in sorted(other.pid for other in others)),
        ):
            remove_pool(shm_path)


def test_a_creator_that_dies_leaves_no_pool_and_blocks_nobody(shm_path: Path) -> None:
    stuck = "def fill(name, into): import time; into[:9] = 1; time.sleep(60)"
    with Other("from pallas_kernels.host_memory import *", PLAN, stuck) as other:
        other._process.stdin.write(f"SharedPool.open_or_create({str(shm_path)!r}, spec, fill)\n")
        other._process.stdin.flush()
        partial = shm_path.with_name(shm_path.name + ".partial")
        until = time.monotonic() + 20
        while not (partial.exists() and partial.stat().st_size) and time.monotonic() < until:
            time.sleep(0.02)
        assert not shm_path.exists()
        with pytest.raises(PoolInUseError, match="another process is creating it, waited 0"):
            SharedPool.open_or_create(shm_path, SPEC, fill, wait_s=0.1)
        other.kill()
    assert partial.exists()
    with make(shm_path) as pool:
        assert pool.numpy("w").min() == 3
    assert not partial.exists()


def test_a_user_that_dies_no_longer_counts(shm_path: Path) -> None:
    make(shm_path).close()
    with opened(shm_path) as other:
        with pytest.raises(PoolInUseError, match=str(other.pid)):
            remove_pool(shm_path)
        other.kill()
    remove_pool(shm_path)
    assert not shm_path.exists()


def test_a_fork_closes_its_pool_and_leaves_the_parents_alone(shm_path: Path) -> None:
    with Other("from pallas_kernels.host_memory import *", "import os", PLAN, FILL) as parent:
        parent(f"pool = SharedPool.open_or_create({str(shm_path)!r}, spec, fill)")
        parent("child = os.fork() or (pool.close(), os._exit(0))")
        assert parent("os.waitpid(child, 0)[1]") == "0"
        assert parent("int(pool.numpy('w')[7])") == "3"
        with pytest.raises(PoolInUseError):
            remove_pool(shm_path)


def test_huge_pages_are_asked_for(path: Path) -> None:
    with make(path) as pool:
        pool.numpy("w").sum()
        flags = [
            line.split()[1:]
            for line in Path("/proc/self/smaps").read_text().split(str(path))[1].splitlines()
            if line.startswith("VmFlags")
        ]
        assert "hg" in flags[0] or not Path("/sys/kernel/mm/transparent_hugepage").exists()
