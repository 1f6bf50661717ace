"""Machine code in files: one function each, read and called without Numba."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from llvmlite import binding

from c2c.atomic import atomic_file
from c2c.compiling.packed import kind_of

__all__ = ["Made", "address_of", "native", "read"]

# By Numba's convention: where the result goes, where an error goes, the arguments; 0: no error.
_Native: Final = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


_ENGINES: Final[list[Any]] = []  # they hold machine code in memory


class Made(NamedTuple):
    """Machine code that the compiler just made.

    Attributes:
      address: where it begins in this process.
      symbol: its name in the object file.
      content: of the object file.
    """

    address: int
    symbol: str
    content: bytes


def address_of(folder: Path | None, name: str, takes: list[Any], make: Callable[[], Made]) -> int:
    """Return where a function's machine code begins, read from its file or made and kept there.

    Args:
      folder: of the files; None: it is made, and not kept.
      name: of the function.
      takes: values of the types of its arguments.
      make: asks the compiler.
    """
    if folder is None:
        return make().address
    kinds = f"{_machine()} {','.join(map(kind_of, takes))}"
    path = folder / f"{name}-{hashlib.sha256(kinds.encode()).hexdigest()[:20]}.o"
    try:
        return read(path)
    except FileNotFoundError:
        pass  # the first time
    except ValueError as error:
        warnings.warn(f"{path} is damaged ({error}); it is compiled again", stacklevel=2)
    made = make()
    whole = made.symbol.encode() + b"\n" + made.content
    with atomic_file(path) as file:
        file.write(hashlib.sha256(whole).digest() + whole)
    return made.address


@functools.cache
def read(path: Path) -> int:
    """Return the address of a file's machine code, which stays in memory from now on.

    Raises:
      FileNotFoundError: there is none.
      ValueError: the file is not as it was written.
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
    """Return what the compiler knows of this processor: another one has other machine code."""
    features = binding.get_host_cpu_features().flatten()
    return f"{binding.get_process_triple()} {binding.get_host_cpu_name()} {features}"


def _target_machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(codemodel="jitdefault")


def native(address: int) -> Callable[[int], int]:
    """Return a call of machine code by the address of its arguments' words.

    It raises RuntimeError where the code ends with an error, which the package's own never does.
    """
    run, result, error = _Native(address), ctypes.c_int64(), ctypes.c_void_p()
    result_at, error_at = ctypes.addressof(result), ctypes.addressof(error)

    def call(at: int) -> int:
        if status := run(result_at, error_at, at):
            raise RuntimeError(f"machine code ended with status {status}; compiled=False says why")
        return result.value

    return call
