"""One process and its pool: values, errors, verification, closing."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.host_memory import (
    DTYPES,
    HostArray,
    PoolCorruptError,
    PoolError,
    PoolInUseError,
    PoolSpaceError,
    PoolStaleError,
    SharedPool,
    TensorSpec,
    layout,
    remove_partial,
    remove_pool,
    shared_memory_path,
)
from tests.pallas_kernels.host_memory.conftest import created
from tests.pallas_kernels.host_memory.processes import ROOT


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "layers.0.w": rng.standard_normal((7, 33)).astype(DTYPES["bfloat16"]),
        "layers.0.scale": rng.standard_normal(33).astype(np.float32),
        "layers.1.w": rng.integers(-128, 127, (3, 5, 2)).astype(np.int8),
        "empty": np.zeros((0, 4), np.float16),
    }


SPEC = TensorSpec(shape=(4,), dtype="int8")


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_a_pool_holds_what_was_put_in(path: Path) -> None:
    given_tensors = tensors()
    with created(path, given_tensors, {"checkpoint": "tiny"}) as pool:
        assert list(pool) == list(given_tensors)
        assert "empty" in pool
        assert len(pool) == 4
        assert pool.metadata == {"checkpoint": "tiny"}
    with SharedPool.open(path) as pool:
        for name, values in given_tensors.items():
            assert same(pool.numpy(name), values)
            assert pool.specs[name] == TensorSpec(shape=values.shape, dtype=values.dtype.name)
        assert "shared pages" in repr(pool)
    assert "closed" in repr(pool)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
# Made into TensorSpecs by the tests: checking types of tuples draws random numbers.
sizes = st.tuples(st.lists(st.integers(0, 9), max_size=4), st.sampled_from(sorted(DTYPES)))


def made(drawn: dict[str, tuple[list[int], str]]) -> dict[str, TensorSpec]:
    return {n: TensorSpec(shape=tuple(shape), dtype=dtype) for n, (shape, dtype) in drawn.items()}


@settings(max_examples=60)
@given(st.dictionaries(names, sizes, min_size=1, max_size=6), st.dictionaries(names, names))
def test_layout_round_trips_aligned_and_apart(
    wanted: dict[str, tuple[list[int], str]], metadata: dict[str, str]
) -> None:
    header = layout.plan(made(wanted), metadata)
    start = layout.encode(header)
    assert layout.decode(memoryview(start), header.nbytes, "pool") == header
    ends = [len(start)]
    for entry in header.entries.values():
        assert entry.offset % layout.ALIGNMENT == 0
        assert entry.offset >= ends[-1]
        ends.append(entry.offset + entry.spec.nbytes)
    assert ends[-1] <= header.nbytes
    assert header.nbytes % layout.PAGE == 0


def test_reading_cannot_change_a_pool(path: Path) -> None:
    with created(path, tensors()) as pool, pytest.raises(ValueError, match="read-only"):
        pool.numpy("layers.0.scale")[0] = 1


def test_what_cannot_be_stored_is_refused_before_a_file_exists(path: Path) -> None:
    for specs, says in (({}, "at least one"), ({"": SPEC}, "not empty")):
        with pytest.raises(PoolError, match=says):
            layout.plan(specs, {})
    with pytest.raises(PoolError, match="at least one"):
        created(path, {})
    assert not path.exists()


def test_wrong_names_shapes_and_types_are_named(path: Path) -> None:
    text = r"no tensor 'layers.0.W' among layers.0.w, "
    with created(path, tensors()) as pool, pytest.raises(PoolError, match=text):
        pool.array("layers.0.W")
    with pytest.raises(PoolError, match="closed"):
        pool.numpy("layers.0.w")
    for shape, dtype in (((-1,), "int8"), ((2.5,), "int8"), ((2,), "int4")):
        with pytest.raises((PoolError, TypeError), match=r"expected|shape"):
            TensorSpec(shape=shape, dtype=dtype)


def test_not_enough_space_says_how_much_is_needed(path: Path) -> None:
    huge = TensorSpec(shape=(1 << 50,), dtype="int8")
    with pytest.raises(PoolSpaceError, match=r"needs \d+ bytes, its file system has \d+ free"):
        SharedPool.open_or_create(path, {"a": huge}, lambda name, into: None)
    assert not path.exists()
    assert not path.with_name(path.name + ".partial").exists()


def test_a_failed_fill_leaves_nothing(path: Path) -> None:
    def fill(name: str, into: np.ndarray) -> None:
        raise KeyError(name)

    with pytest.raises(KeyError):
        SharedPool.open_or_create(path, {"a": TensorSpec(shape=(4,), dtype="int8")}, fill)
    assert list(path.parent.glob(path.name + "*")) == []


def test_what_a_process_that_died_has_written_can_be_removed(path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    remove_partial(path)  # nothing is there
    with partial.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove_partial(path)
        assert partial.exists()  # somebody is at it
    remove_partial(path)
    assert not partial.exists()


def test_creating_twice_is_refused_and_open_or_create_checks(path: Path) -> None:
    spec = {"a": TensorSpec(shape=(4,), dtype="int8")}
    filled = []

    def fill(name: str, into: np.ndarray) -> None:
        filled.append(name)
        into[...] = 7

    for _ in range(2):
        with SharedPool.open_or_create(path, spec, fill, metadata={"v": "1"}) as pool:
            assert pool.numpy("a").tolist() == [7] * 4
    assert filled == ["a"]
    with pytest.raises(PoolStaleError, match="other tensors or metadata"):
        SharedPool.open_or_create(path, spec, fill, metadata={"v": "2"})
    other = {"a": TensorSpec(shape=(4,), dtype="uint8")}
    with pytest.raises(PoolStaleError):
        SharedPool.open_or_create(path, other, fill, metadata={"v": "1"})
    remove_pool(path)  # nothing above has left it open


def damage(path: Path, offset: int, value: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value)


def test_damage_is_found(path: Path) -> None:
    created(path, tensors()).close()
    good = path.read_bytes()
    damage(path, good.index(b"float32"), b"float16")
    with pytest.raises(PoolCorruptError, match="header damaged"):
        SharedPool.open(path)
    path.write_bytes(good[:-4096])
    with pytest.raises(PoolCorruptError, match="bytes, expected"):
        SharedPool.open(path)
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(PoolCorruptError, match="got other first bytes"):
        SharedPool.open(path)
    path.write_bytes(b"")
    with pytest.raises(PoolCorruptError, match="0 bytes"):
        SharedPool.open(path)

    remove_pool(path)
    with pytest.raises(PoolError, match="expected a pool"):
        SharedPool.open(path)


@settings(max_examples=100)
@given(st.integers(0, 500), st.integers(1, 255))
def test_no_damaged_header_is_accepted(at: int, flip: int) -> None:
    header = layout.plan({"a": TensorSpec(shape=(3,), dtype="int8")}, {"from": "here"})
    start = bytearray(layout.encode(header))
    at %= len(start)
    start[at] ^= flip
    with pytest.raises(PoolCorruptError):
        layout.decode(memoryview(start), header.nbytes, "pool")


def test_headers_that_lie_are_refused() -> None:
    from dataclasses import replace

    header = layout.plan({n: TensorSpec(shape=(300,), dtype="int8") for n in "ab"}, {})
    for name, offset in (("b", header.entries["a"].offset), ("b", 1 << 40), ("a", 0), ("a", 4097)):
        entries = dict(header.entries)
        entries[name] = replace(entries[name], offset=offset)
        lying = layout.encode(replace(header, entries=entries))
        with pytest.raises(PoolCorruptError, match="overlaps"):
            layout.decode(memoryview(lying), header.nbytes, "pool")


def test_host_arrays_are_the_pages_themselves(path: Path) -> None:
    given_tensors = tensors()
    with created(path, given_tensors) as pool:
        arrays = pool.arrays()
        for name, array in arrays.items():
            assert isinstance(array, HostArray)
            assert array.memory_kind == "pinned_host"
            assert same(array.numpy(), given_tensors[name])
            if array.nbytes:
                address = pool.numpy(name).ctypes.data
                assert array.data.unsafe_buffer_pointer() == address
        del array, arrays


def test_closing_waits_for_arrays(path: Path) -> None:
    pool = created(path, tensors())
    view = pool.numpy("layers.0.w")[1:, ::2]  # a view of a view
    array = pool.array("layers.0.scale")
    with pytest.raises(PoolInUseError, match=r"arrays of layers.0.scale, layers.0.w are alive"):
        pool.close()
    del view
    with pytest.raises(PoolInUseError, match=r"arrays of layers.0.scale are alive"):
        pool.close()
    del array
    pool.close()
    pool.close()  # again is nothing


def test_arrays_outlive_a_pool_that_was_dropped(path: Path) -> None:
    given_tensors = tensors()
    pool = created(path, given_tensors)
    array, view = pool.array("layers.0.scale"), pool.numpy("layers.0.w")
    del pool
    gc.collect()
    assert same(array.numpy(), given_tensors["layers.0.scale"])
    assert same(view, given_tensors["layers.0.w"])
    with pytest.raises(PoolInUseError):
        remove_pool(path)  # the pages hold the lock
    del array, view
    jnp.zeros(1).block_until_ready()  # jax lets go of buffers when it next runs
    gc.collect()
    remove_pool(path)


def test_removal_counts_users(path: Path) -> None:
    with created(path, tensors()) as pool, SharedPool.open(path):
        with pytest.raises(PoolInUseError, match=str(os.getpid())):
            remove_pool(path)
        remove_pool(path, force=True)
        assert same(pool.numpy("layers.0.w"), tensors()["layers.0.w"])
    with pytest.raises(PoolError):
        remove_pool(path)


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="cannot be created"):
        created(tmp_path / "no" / "folder", tensors())
    for name in ("", "a/b", ".hidden"):
        with pytest.raises(PoolError, match="plain file name"):
            shared_memory_path(name)


def test_the_pool_needs_no_jax() -> None:
    code = (
        "import sys; from pallas_kernels.host_memory import SharedPool, remove_pool; "
        "print('jax' in sys.modules); from pallas_kernels.host_memory import to_host; "
        "print('jax' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.split() == ["False", "True"], run.stderr
