"""Signal words in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jax.experimental.mosaic import gpu as mosaic
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import llvm, memref

from pallas_kernels.integer_math import Int
from pallas_kernels.mosaic import Ref, plgpu

_mosaic: Any = mosaic  # untyped
_LOAD = "ld.acquire.sys.global.b32 $0, [$1];"
_PROXIES = "fence.proxy.async.global;"
_ORDER = f"{_PROXIES} fence.acq_rel.sys;"
_NOTE = "st.relaxed.sys.global.b32"
_STORE = "st.release.sys.global.b32"

Note = tuple[Ref, Int]
"""A word in global memory, [1], and what to store there."""


@runtime_checkable
class Signals(Protocol):
    """Operations of kernels on signal words."""

    def look(self, word: Ref, handed: Ref) -> None:
        """Load a word [1] with acquire into shared memory [1]."""

    def tell(self, notes: Sequence[Note], last: Note) -> None:
        """Store notes, then a word with release, which orders earlier stores."""

    def between(self, *, order: bool = False) -> None:
        """Make announced data visible to TMA; with `order`, TMA's stores to others."""


# One thread loads a word with acquire and passes it on through shared memory: threads that looked
# separately could see different numbers, and a kernel whose threads disagree hangs. One thread
# stores a word with release, after earlier stores by TMA, which use another path (the asynchronous
# proxy) and need their own fence.
class Instructions:
    """Operations on a GPU, by inline instructions."""

    def look(self, word: Ref, handed: Ref) -> None:
        """Load by one thread, between two warpgroup barriers."""

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType()))  # type: ignore[untyped-decorator]
        def load(_: Any, word: Any, handed: Any) -> None:
            number = ir.IntegerType.get_signless(32)
            _mosaic.utils.warpgroup_barrier()  # the one before was read
            with _alone():
                operands = [_mosaic.utils.memref_ptr(word)]
                seen = llvm.inline_asm(
                    number, operands, _LOAD, "=r,l,~{memory}", has_side_effects=True
                )
                memref.store(seen, handed, [_mosaic.utils.c(0, ir.IndexType.get())])
            _mosaic.utils.warpgroup_barrier()

        load(word, handed)

    def tell(self, notes: Sequence[Note], last: Note) -> None:
        """Store by one thread."""
        words = [*notes, last]
        kinds = (plgpu.RefType(), plgpu.Layout.WG_SPLAT(())) * len(words)
        order = [f"{_NOTE} [${2 * n}], ${2 * n + 1};" for n in range(len(notes))]
        order += [_ORDER, f"{_STORE} [${2 * len(notes)}], ${2 * len(notes) + 1};"]

        @plgpu.inline_mgpu(arg_types=kinds)  # type: ignore[untyped-decorator]
        def store(_: Any, *args: Any) -> None:
            with _alone():
                operands = [
                    value
                    for word, number in zip(args[::2], args[1::2], strict=True)
                    for value in (_mosaic.utils.memref_ptr(word), number.registers.flat[0])
                ]
                _run(" ".join(order), operands, ",".join(["l,r"] * len(words)))

        store(*(part for word in words for part in word))

    def between(self, *, order: bool = False) -> None:
        """Fence both paths to memory; with `order` all accesses."""

        @plgpu.inline_mgpu(arg_types=())  # type: ignore[untyped-decorator]
        def fence(_: Any) -> None:
            _run(_ORDER if order else _PROXIES, [], "")

        fence()


# Interpret mode has no such instructions and runs nothing beside the kernel.
class Accesses:
    """Operations in interpret mode, by plain accesses."""

    def look(self, word: Ref, handed: Ref) -> None:
        """Copy the word."""
        handed[0] = word[0]

    def tell(self, notes: Sequence[Note], last: Note) -> None:
        """Store in order."""
        for word, value in (*notes, last):
            word[...] = jnp.broadcast_to(value, (1,)).astype(jnp.int32)

    def between(self, *, order: bool = False) -> None:
        """Do nothing: there is only one path to memory."""


def _alone() -> Any:
    return _mosaic.utils.single_thread(scope=_mosaic.utils.ThreadSubset.WARPGROUP)


def _run(code: str, operands: Sequence[Any], constraints: str) -> None:
    nothing = ir.Type.parse("!llvm.void")
    clobbers = ",".join(filter(None, (constraints, "~{memory}")))
    llvm.inline_asm(nothing, operands, code, clobbers, has_side_effects=True)
