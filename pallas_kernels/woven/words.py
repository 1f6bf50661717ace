"""32-bit words in shared pages, stored with release, loaded with acquire."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, Final

__all__ = ["BITS", "Word", "ahead"]

BITS: Final = 32
_MASK: Final = (1 << BITS) - 1

_CODE: Final = f"""
define void @put(ptr %at, i{BITS} %value) {{
  store atomic i{BITS} %value, ptr %at release, align {BITS // 8}
  ret void
}}
define i{BITS} @get(ptr %at) {{
  %value = load atomic i{BITS}, ptr %at acquire, align {BITS // 8}
  ret i{BITS} %value
}}
"""


def ahead(later: int, earlier: int) -> int:
    """Return the distance of a word ahead of another, modulo 2^32.

    >>> ahead(2, 2**32 - 1), ahead(5, 7) == 2**32 - 2
    (3, True)
    """
    return (later - earlier) & _MASK


# A word announces a payload, so no reader may see the word before the payload. On x86 plain stores
# are seen in order; on Arm they are not, and Python has no fence. So LLVM (llvmlite) compiles the
# two instructions for either machine: a store with release (a plain move on x86, `stlr` on Arm)
# orders all earlier loads and stores of the thread before it, a load with acquire (`ldar` on Arm)
# all later ones after it. The C compiler cannot move a copy across the call to an unknown address.
class Word:
    """A word at a mapped address, a multiple of 4."""

    def __init__(self, address: int) -> None:
        assert address % (BITS // 8) == 0
        self._address = address
        self._put, self._get, _ = _compiled()

    def load(self) -> int:
        """Return the word, after all earlier stores of its writer."""
        return int(self._get(self._address))

    def store(self, value: int) -> None:
        """Store a number modulo 2^32, after earlier accesses."""
        self._put(self._address, value & _MASK)


@cache
def _compiled() -> tuple[Callable[[int, int], None], Callable[[int], int], Any]:
    import llvmlite.binding as llvm  # only who makes a slot needs it

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_CODE), machine)
    engine.finalize_object()
    address, word = ctypes.c_size_t, ctypes.c_uint32
    # PYFUNCTYPE keeps the interpreter's lock: the call takes a few nanoseconds.
    put = ctypes.PYFUNCTYPE(None, address, word)(engine.get_function_address("put"))
    get = ctypes.PYFUNCTYPE(word, address)(engine.get_function_address("get"))
    return put, get, engine
