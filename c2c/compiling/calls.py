"""Calls between functions of the package, as little code as they need.

After each call Numba writes every way in which it can end and, where it failed, asks whether
that was within a `try`: two dozen instructions at 1,500 calls, a seventh of all that LLVM reads.
The package's compiled functions have no `try`, no generators, and look at errors alone.
"""

# ruff: noqa: SLF001

from __future__ import annotations

from typing import Any, Final

from numba.core.base import BaseContext
from numba.core.callconv import RETCODE_NONE, RETCODE_OK, CPUCallConv, Status

from c2c.compiling.ours import SYMBOLS

__all__ = ["install"]

_Context: Final[Any] = BaseContext  # Numba brings no types for it
_Convention: Final[Any] = CPUCallConv
_STATUS: Final[Any] = _Convention._get_return_status
_PROPAGATE: Final[Any] = _Convention.return_status_propagate
_PACKER: Final[Any] = _Context.get_arg_packer


def _status(self: Any, builder: Any, code: Any, raised: Any) -> Any:
    if not builder.function.name.startswith(SYMBOLS):
        return _STATUS(self, builder, code, raised)
    some = builder.icmp_signed("!=", code, RETCODE_OK)
    failed = builder.and_(some, builder.icmp_signed("!=", code, RETCODE_NONE))
    known = dict.fromkeys(Status._fields)  # what nobody asks for is None
    return Status(**known | {"code": code, "is_error": failed, "excinfoptr": raised})


def _propagate(self: Any, builder: Any, status: Any) -> None:
    if not builder.function.name.startswith(SYMBOLS):
        _PROPAGATE(self, builder, status)
        return
    builder.store(status.excinfoptr, self._get_excinfo_argument(builder.function))
    self._return_errcode_raw(builder, status.code)


def _packer(self: Any, kinds: Any) -> Any:
    known = self.__dict__.setdefault("_c2c_packers", {})
    key = tuple(kinds)
    found = known.get(key)
    if found is None:
        found = known[key] = _PACKER(self, kinds)
    return found


def install() -> None:
    """Put them in place of Numba's own, for calls from the package's functions."""
    _Convention._get_return_status = _status
    _Convention.return_status_propagate = _propagate
    _Context.get_arg_packer = _packer
