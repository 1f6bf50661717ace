"""Modules of an emulated process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from c2c.systems.program.image import Entry, entries_of
from c2c.systems.program.port import DeviceFault

__all__ = ["Function", "Library", "Modules"]

_SHARED_BYTES = 48 << 10  # default limit of a launch's dynamic shared memory


@dataclass(frozen=True, slots=True)
class Library:
    """A library of kernels, as images loaded on first use."""

    path: str
    images: tuple[bytes, ...]
    is_hidden: bool = False  # True: no symbol table has its kernels


@dataclass(slots=True)
class Function:
    """A kernel in a loaded module."""

    entry: Entry
    module: int
    is_loaded: bool = False
    shared_limit: int = _SHARED_BYTES


@dataclass(slots=True)
class Modules:
    """Libraries and loaded modules of a process."""

    libraries: dict[str, Library]
    draw: random.Random
    functions: dict[int, Function] = field(default_factory=dict)
    by_module: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _of_library: dict[tuple[str, int], int] = field(default_factory=dict)
    _handle: int = 0

    def load(self, image: bytes) -> int:
        """Load an image; functions in random order on first use."""
        entries = list(entries_of(image))
        self.draw.shuffle(entries)
        module = self._new()
        handles = []
        for entry in entries:
            handles.append(self._new())
            self.functions[handles[-1]] = Function(entry, module)
        self.by_module[module] = tuple(handles)
        return module

    def find(self, module: int, name: str) -> int:
        """Load and return a function of a module by name."""
        for handle in self.by_module.get(module, ()):
            if self.functions[handle].entry.name == name:
                self.functions[handle].is_loaded = True
                return handle
        raise DeviceFault(f"no function {name} in the module")

    def of_library(self, path: str, name: str) -> int | None:
        """Load and return a library's kernel, or None."""
        library = self.libraries.get(path)
        for k, image in enumerate(() if library is None else library.images):
            if any(entry.name == name for entry in entries_of(image)):
                if (path, k) not in self._of_library:
                    self._of_library[path, k] = self.load(image)
                return self.find(self._of_library[path, k], name)
        return None

    def function(self, handle: int) -> Function:
        """Return a handle's function."""
        result = self.functions.get(handle)
        if result is None:
            raise DeviceFault(f"{handle:#x} is no function of this process")
        return result

    def _new(self) -> int:
        self._handle += self.draw.randrange(16, 4096, 16)
        return 0x5500_0000_0000 + self._handle


def libraries_by_path(libraries: Sequence[Library]) -> dict[str, Library]:
    """Return libraries by their paths."""
    return {library.path: library for library in libraries}
