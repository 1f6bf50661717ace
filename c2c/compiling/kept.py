"""Machine code in files, used without Numba."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from llvmlite import binding

from c2c.atomic import atomic_file

__all__ = ["Made", "address_of", "native", "read"]

# By Numba's convention: where the result goes, where an error goes, the arguments; 0: no error.
_Native: Final = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


_ENGINES: Final[list[Any]] = []  # they hold machine code in memory


class Made(NamedTuple):
    """Machine code just compiled: its address, its name in the object file, that file's content."""

    address: int
    symbol: str
    content: bytes


def address_of(
    folder: Path | None, name: str, takes: Sequence[str], make: Callable[[], Made]
) -> int:
    """Return machine code's address, read or compiled and kept."""
    if folder is None:
        return make().address
    path = _path(folder, name, ",".join(takes))
    try:
        return read(path)
    except FileNotFoundError:
        pass  # the first time
    except ValueError as error:
        warnings.warn(f"{path} is damaged ({error}); it is compiled again", stacklevel=2)
    code = make()
    whole = code.symbol.encode() + b"\n" + code.content
    with atomic_file(path) as file:
        file.write(hashlib.sha256(whole).digest() + whole)
    return code.address


@functools.lru_cache(maxsize=1024)
def _path(folder: Path, name: str, takes: str) -> Path:
    digest = hashlib.sha256(f"{_machine()} {takes}".encode()).hexdigest()
    return folder / f"{name}-{digest[:20]}.o"


@functools.cache
def read(path: Path) -> int:
    """Load a file's machine code for good; return its address.

    Raises:
      FileNotFoundError: there is no file.
      ValueError: it is damaged.
    """
    content = path.read_bytes()
    whole = content[32:]
    if hashlib.sha256(whole).digest() != content[:32]:
        raise ValueError("its content is not what was written")
    symbol, _, code = whole.partition(b"\n")
    # An engine each: in one, what two files call by the same name would be one function.
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _target_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    return int(engine.get_function_address(symbol.decode()))


@functools.cache
def _machine() -> str:
    features = binding.get_host_cpu_features().flatten()
    return f"{binding.get_process_triple()} {binding.get_host_cpu_name()} {features}"


def _target_machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(codemodel="jitdefault")


def native(address: int) -> Callable[[int], int]:
    """Return a call of machine code; it raises RuntimeError."""
    run, result, error = _Native(address), ctypes.c_int64(), ctypes.c_void_p()
    result_at, error_at = ctypes.addressof(result), ctypes.addressof(error)

    def call(address: int) -> int:
        if status := run(result_at, error_at, address):
            raise RuntimeError(
                f"machine code ended with status {status}; compiled=False shows the reason"
            )
        return result.value

    return call
