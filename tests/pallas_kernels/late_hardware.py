"""Hardware that is as late as it may be, for the interpreter of the tests."""

from __future__ import annotations

import functools
import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from jax._src import callback, source_info_util
from jax._src.pallas.mosaic.interpret import race_detection_state as clocks
from jax._src.pallas.mosaic_gpu import primitives
from jax._src.pallas.mosaic_gpu.interpret import (
    gpu_callbacks,
    jaxpr_interpret,
    race_detection_state,
    shared_memory,
)

# Jax's interpreter carries out a product, and a store from shared memory, where it is issued; a GPU
# does so any time until somebody waits. Here:
# - a product (wgmma) reads its tiles when it is waited for, and takes what they hold then;
# - a store reads its slot when its read is waited for, and arrives when that is;
# - members of a `RefUnion` have the same bytes;
# - of a multicast tile each CTA loads its share, into the shared memory of all CTAs of the cluster.
# If races are detected, products and stores are carried out at once, and the clocks say how late
# they may be: a product reads through the proxy of asynchronous copies until it is waited for, and
# members of a union conflict where their bytes do.

ALIGNED_BYTES = 1024  # the beginning of a member of a union
NEVER_WRITTEN = 0xFF  # in each byte: NaN in all floating types


@dataclass
class _Store:
    """A store from shared memory that has not arrived.

    Attributes:
      task: jax's.
      data: as read from its slot; None before that.
    """

    task: Any
    data: np.ndarray | None = None


@dataclass(frozen=True)
class _Member:
    """A member of a union: its union, its group there, and where its bytes begin."""

    union: Any
    group: int
    begin: int


@dataclass(frozen=True)
class _Access:
    """An access to a member of a union."""

    clock: Any
    group: int
    is_write: bool
    begin: int
    end: int
    where: str


@dataclass
class _Pending:
    """Work of one launch that was issued and has not been waited for.

    Attributes:
      products: of each thread, in their order; clocks where races are detected.
      stores: likewise.
      shares: of multicast tiles that have come since a barrier's last arrival, by barrier: clocks.
      too_early: shares that go to a CTA whose memory is not there yet, by key of their barrier.
      members: of unions, by key.
      accesses: to members of a union, by its key.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    products: dict[Any, deque[Any]] = field(default_factory=lambda: defaultdict(deque))
    stores: dict[Any, deque[_Store]] = field(default_factory=lambda: defaultdict(deque))
    shares: dict[Any, list[Any]] = field(default_factory=lambda: defaultdict(list))
    too_early: dict[Any, list[Callable[[], None]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    members: dict[Any, _Member] = field(default_factory=dict)
    accesses: dict[Any, list[_Access]] = field(default_factory=lambda: defaultdict(list))


def _pending(memory: Any) -> _Pending:
    result: _Pending = memory.__dict__.setdefault("pending", _Pending())
    return result


def _memory() -> Any:
    return gpu_callbacks._get_shared_memory()


# --- products


def _wgmma(*, token: Any, thread: Any, **arguments: Any) -> Any:
    """Issue a product."""
    memory = _memory()
    own, issued = OWN[gpu_callbacks, "wgmma"], _pending(memory).products[thread]
    if not memory.detect_races:
        issued.append(lambda: own(token=token, thread=thread, **arguments))
        return token
    clock = memory.incr_clock(thread)
    clock.inc(memory.get_next_tma_thread_id())
    for side in "ab":
        key = shared_memory.HostAllocationKey.from_array(
            arguments[f"{side}_allocation_key_as_array"]
        )
        transforms = gpu_callbacks._remove_noop_transforms(arguments[f"{side}_transforms"])
        gpu_callbacks.get_races().check_read(
            thread, clock.async_smem_clock.copy(), key,
            memory.access(key, _numbers(transforms)), source_info=arguments["source_info"],
        )  # fmt: skip
    issued.append(clock)
    return own(token=token, thread=thread, **arguments)


def _numbers(transforms: Any) -> Any:
    return gpu_callbacks.jax.tree.map(int, transforms)


def _wait_products(thread: Any, most: int) -> None:
    """Have no more than so many products of a thread under way."""
    memory = _memory()
    issued = _pending(memory).products[thread]
    while len(issued) > most:
        done = issued.popleft()
        if memory.detect_races:
            with memory.lock:
                memory.clocks[thread].update(done)
        else:
            done()


@gpu_callbacks.fail_on_exception
def _wgmma_wait(token: Any, thread: Any, n: Any) -> Any:
    _wait_products(thread, int(n))
    return token


def _deref(*, thread: Any, wait_n: int | None, **arguments: Any) -> Any:
    """Read an accumulator."""
    if wait_n is not None:
        _wait_products(thread, int(wait_n))
    own = OWN[gpu_callbacks, "wgmma_accumulator_deref"]
    return own(thread=thread, wait_n=wait_n, **arguments)


def _arithmetic(interpreter: Any, eqn: Any, get_invals: Any) -> Any:
    """Carry out an operation without a case in jax's interpreter: a wait for products, too."""
    if eqn.primitive is not primitives.wgmma_wait_p:
        own = OWN[jaxpr_interpret.JaxprInterpreter, "_interpret_arithmetic_primitive"]
        return own(interpreter, eqn, get_invals)
    callback.io_callback(
        _wgmma_wait, gpu_callbacks.TOKEN_SHAPE_DTYPE, np.int32(0), interpreter.thread,
        np.int32(eqn.params["n"]),
    )  # fmt: skip
    return []


# --- stores


def keeps(memory: Any, task: Any) -> bool:
    """Take a store to carry it out when it is waited for; say whether it is one."""
    if not isinstance(task, gpu_callbacks.AsyncCopySmemToGmemTask) or memory.detect_races:
        return False
    task.pre_read(0, memory)
    _pending(memory).stores[task.thread].append(_Store(task))
    return True


def _read(memory: Any, store: _Store) -> None:
    task = store.task
    if store.data is None:
        data, _, _ = memory.get_buffer_content(
            task.src_allocation_key, task.src_access, task.thread, logging_info=task.logging_info
        )
        store.data = np.array(data)


def _write(memory: Any, store: _Store) -> None:
    task = store.task
    shape = tuple(memory.buffer_shape_and_dtype(task.dst_allocation_key).shape)
    inside = gpu_callbacks._clip_store_to_shape(task.dst_access, store.data, shape)
    if inside is not None:
        memory.store_buffer_content(
            task.dst_allocation_key, *inside, task.thread, logging_info=task.logging_info
        )


def _wait_stores(*, thread: Any, n: Any, wait_read_only: bool, **arguments: Any) -> Any:
    """Have no more than so many stores of a thread under way."""
    memory = _memory()
    issued = _pending(memory).stores[thread]
    for store in tuple(issued)[: len(issued) - int(n)]:
        _read(memory, store)
        if not wait_read_only:
            _write(memory, issued.popleft())
    own = OWN[gpu_callbacks, "wait_smem_to_gmem"]
    return own(thread=thread, n=n, wait_read_only=wait_read_only, **arguments)


def _finished(*, thread: Any, **arguments: Any) -> Any:
    """End a thread: what reads its shared memory must have been waited for."""
    memory = _memory()
    pending = _pending(memory)
    products, stores = pending.products.pop(thread, ()), pending.stores.pop(thread, ())
    if products or any(store.data is None for store in stores):
        raise ValueError(f"{thread} ends while a product or a store reads shared memory")
    for store in stores:
        _write(memory, store)
    return OWN[gpu_callbacks, "kernel_thread_finished"](thread=thread, **arguments)


# --- multicast

MULTICAST = "multicast"  # a scope in the name stack of such a copy


def _copy(interpreter: Any, eqn: Any, token: Any, get_invals: Any) -> Any:
    """Mark a copy that all CTAs of the cluster share."""
    if eqn.params["collective_axes"]:
        info = eqn.source_info
        eqn = eqn.replace(source_info=info.replace(name_stack=info.name_stack.extend(MULTICAST)))
    own = OWN[jaxpr_interpret.JaxprInterpreter, "_interpret_copy_gmem_to_smem_p"]
    return own(interpreter, eqn, token, get_invals)


class _Share(gpu_callbacks.AsyncCopyGmemToSmemTask):  # type: ignore[misc]
    """A CTA's share of a multicast tile, on its way to one CTA.

    Attributes:
      tile: shape of the whole tile.
      of: shares that make it.
      is_own: whether it goes to the CTA that issued it: global memory is read once for all.
    """

    tile: tuple[int, ...] = ()
    of = 1
    is_own = True

    def pre_read(self, number: int, memory: Any) -> None:
        """Read global memory, once."""
        if self.is_own or memory.detect_races:
            super().pre_read(number, memory)

    def post_write(self, _: int, memory: Any) -> None:
        """Arrive at the barrier if this was the last share."""
        pending = _pending(memory)
        with pending.lock:
            came = pending.shares[id(self.barrier)]
            came.append(self.clock)
            if len(came) < self.of:
                return
            del pending.shares[id(self.barrier)]
        merged = None if self.clock is None else self.clock.copy()
        for clock in came if merged is not None else ():
            merged.update(clock)
        self.barrier.arrive(self.thread, merged, self.logging_info)


def _load(*, token: Any, thread: Any, source_info: Any, **arguments: Any) -> Any:
    """Copy a tile into shared memory, or this CTA's share of it into all of the cluster's."""
    if MULTICAST not in str(source_info.name_stack):
        own = OWN[gpu_callbacks, "copy_gmem_to_smem"]
        return own(token=token, thread=thread, source_info=source_info, **arguments)
    memory = _memory()
    keys, found = {}, {}
    for side in ("src", "dst", "barrier"):
        as_array = arguments[f"{side}_allocation_key_as_array"]
        keys[side] = shared_memory.HostAllocationKey.from_array(as_array)
    for side in ("src", "dst"):
        transforms = gpu_callbacks._remove_noop_transforms(arguments[f"{side}_transforms"])
        found[side] = memory.access(keys[side], _numbers(transforms))
    of = memory.num_blocks_per_cluster
    clock = memory.incr_clock(thread) if memory.detect_races else None
    axis = next(k for k, extent in enumerate(found["dst"].shape) if extent % of == 0)

    def send(peer: int) -> None:
        share = _Share(
            mesh_location=arguments["mesh_location"],
            thread=thread,
            src_allocation_key=keys["src"],
            src_access=_part(found["src"], axis, thread.block_id, of),
            dst_allocation_key=replace(keys["dst"], block_id=peer),
            dst_access=_part(found["dst"], axis, thread.block_id, of),
            barrier_allocation_key=replace(keys["barrier"], block_id=peer),
            source_info=source_info,
            clock=None if clock is None else clock.copy(),
        )
        share.tile, share.of, share.is_own = found["dst"].shape, of, peer == thread.block_id
        memory.execute_async_task(share)

    for peer in range(of):
        barrier, target = (replace(keys[k], block_id=peer) for k in ("barrier", "dst"))
        with _pending(memory).lock:
            is_there = barrier in memory.mem and target in memory.mem
            if not is_there:
                _pending(memory).too_early[barrier].append(functools.partial(send, peer))
        if is_there:
            send(peer)
    return token


def deliver(memory: Any, barrier: Any) -> None:
    """Send what was issued for a barrier's CTA before it had its memory."""
    pending = _pending(memory)
    with pending.lock:
        keys = [key for key in pending.too_early if memory.mem.get(key) is barrier]
        sends = [send for key in keys for send in pending.too_early.pop(key)]
    for send in sends:
        send()


def _part(access: Any, axis: int, number: int, of: int) -> Any:
    """Return a part of what an access takes: along one of its axes, cut into equal ones."""
    axes = [k for k, taken in enumerate(access.range) if isinstance(taken, slice)]
    taken = access.range[axes[axis]]
    size = (taken.stop - taken.start) // of
    begin = taken.start + number * size
    cut = (*access.range[: axes[axis]], slice(begin, begin + size), *access.range[axes[axis] + 1 :])
    return replace(access, range=cut)


# --- unions


def _tag(token: Any, member_keys_as_array: Any, alias_group_idxs: Sequence[int]) -> Any:
    """Give the members of a union the same bytes."""
    memory = _memory()
    keys = [shared_memory.HostAllocationKey.from_array(k) for k in member_keys_as_array]
    pending = _pending(memory)
    with pending.lock:
        if keys[0] not in pending.members:
            ends: dict[int, int] = defaultdict(int)
            for key, group in zip(keys, alias_group_idxs, strict=True):
                pending.members[key] = _Member(keys[0], group, ends[group])
                size = -memory.mem[key].size // ALIGNED_BYTES * -ALIGNED_BYTES
                ends[group] += size
            whole = np.full(max(ends.values()), NEVER_WRITTEN, np.uint8)
            for key in keys:
                old, begin = memory.mem[key].content, pending.members[key].begin
                memory.mem[key]._content = (
                    whole[begin : begin + old.nbytes].view(old.dtype).reshape(old.shape)
                )
    return OWN[gpu_callbacks, "_tag_ref_union"](token, member_keys_as_array, alias_group_idxs)


def _bytes_of(memory: Any, key: Any, access: Any) -> tuple[int, int]:
    """Return where the bytes of an access to a buffer begin and end."""
    shape, dtype = memory.buffer_shape_and_dtype(key)
    begin = last = 0
    for axis, extent in enumerate(shape):
        at = access.range[axis] if axis < len(access.range) else slice(0, extent)
        stride = math.prod(shape[axis + 1 :])
        first, past = (at, at + 1) if isinstance(at, int) else (at.start, at.stop)
        begin, last = begin + first * stride, last + (past - 1) * stride
    size = np.dtype(dtype).itemsize
    return begin * size, (last + 1) * size


def _check_union(races: Any, clock: Any, key: Any, access: Any, frame: Any, *, write: bool) -> None:
    """Compare an access to those before it of other groups that had the same bytes."""
    memory = _memory()
    pending = _pending(memory)
    member = pending.members.get(key)
    if member is None:
        return
    begin, end = (member.begin + at for at in _bytes_of(memory, key, access))
    where = "pallas_call" if frame is None else source_info_util.summarize(frame)
    new = _Access(clock, member.group, write, begin, end, where)
    with pending.lock:
        before = [
            old for old in pending.accesses[member.union] if old.begin < end and begin < old.end
        ]
        pending.accesses[member.union].append(new)
    writes = [old for old in before if old.is_write]
    for old in before:
        if old.group == new.group or not (write or old.is_write):
            continue
        is_stale = not write and old is writes[-1]
        if not old.clock.ordered(clock) or is_stale:
            print(f"RACE DETECTED\n  of a union's bytes: {new}\n  after {old}")
            races.races_found = True
            return


def _check_read(
    races: Any, thread: Any, clock: Any, key: Any, access: Any, source_info: Any = None
) -> None:
    clocks.RaceDetectionState.check_read(races, thread, clock, key, access.range, source_info)
    _check_union(races, clock, key, access, source_info, write=False)


def _check_write(
    races: Any, thread: Any, clock: Any, key: Any, access: Any, source_info: Any = None
) -> None:
    clocks.RaceDetectionState.check_write(races, thread, clock, key, access.range, source_info)
    _check_union(races, clock, key, access, source_info, write=True)


PLACES: dict[tuple[Any, str], Any] = {
    (gpu_callbacks, "wgmma"): _wgmma,
    (gpu_callbacks, "wgmma_accumulator_deref"): _deref,
    (gpu_callbacks, "wait_smem_to_gmem"): _wait_stores,
    (gpu_callbacks, "copy_gmem_to_smem"): _load,
    (gpu_callbacks, "kernel_thread_finished"): _finished,
    (gpu_callbacks, "_tag_ref_union"): _tag,
    (jaxpr_interpret.JaxprInterpreter, "_interpret_arithmetic_primitive"): _arithmetic,
    (jaxpr_interpret.JaxprInterpreter, "_interpret_copy_gmem_to_smem_p"): _copy,
    # without the case of a wait for products, which does nothing
    (jaxpr_interpret, "gpu_primitives"): SimpleNamespace(
        **{**vars(primitives), "wgmma_wait_p": None}
    ),
    (race_detection_state.GPURaceDetectionState, "check_read"): _check_read,
    (race_detection_state.GPURaceDetectionState, "check_write"): _check_write,
}
OWN = {place: getattr(*place) for place in PLACES}
"""Jax's own."""
