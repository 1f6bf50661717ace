"""Builds the fake driver library and libraries of kernels for it, with the machine's compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from c2c.systems.program import Library, entries_of

__all__ = ["build", "environment"]

HERE = Path(__file__).parent
ROOT = HERE.parents[3]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of processes that use the fake driver; skips what cannot be."""
    bindings = ROOT / ".venv-driver"
    if not bindings.is_dir():
        pytest.skip("the extra `driver` is missing: make driver")
    paths = os.pathsep.join((str(ROOT), str(bindings)))
    return os.environ | {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": paths}


def build(folder: Path, libraries: Iterable[Library]) -> None:
    """Build the driver, its runtime's name, and the libraries into a folder."""
    compiler = _compiler()
    driver = folder / "libcuda.so.1"
    _compile(compiler, HERE / "libcuda.c", driver)
    for name in ("libcuda.so", "libcudart.so.13"):
        (folder / name).symlink_to(driver.name)
    for library in libraries:
        source = folder / f"{library.path}.c"
        source.write_text(_source(library))
        _compile(compiler, source, folder / library.path, f"-L{folder}", "-lcuda")


def _compiler() -> str:
    result = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if result is None:
        pytest.skip("there is no C compiler")
    return result


def _compile(compiler: str, source: Path, target: Path, *more: str) -> None:
    line = [compiler, "-O2", "-shared", "-fPIC", "-o", str(target), str(source), *more]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _source(library: Library) -> str:
    """Return C that registers the images; names are symbols only where they are to be seen."""
    lines = [
        "typedef struct { const char *name; const void *symbol; } Symbol;",
        "void fake_register(const char *, const char *, const Symbol *);",
        "void *fake_function(const char *, const char *);",
        f'void *kernel_of(const char *name) {{ return fake_function("{library.path}", name); }}',
    ]
    calls = []
    for k, image in enumerate(library.images):
        names = [entry.name for entry in entries_of(image)]
        kind = "static char" if library.is_hidden else "char"
        lines += [f"{kind} {name}[1];" for name in names]
        rows = ", ".join(f'{{"{name}", {name}}}' for name in names)
        lines.append(f"static const Symbol symbols_{k}[] = {{{rows}, {{0, 0}}}};")
        lines.append(f"static const char image_{k}[] = {_literal(image.decode().splitlines())};")
        calls.append(f'fake_register("{library.path}", image_{k}, symbols_{k});')
    lines.append(f"__attribute__((constructor)) static void begin(void) {{ {' '.join(calls)} }}")
    return "\n".join(lines) + "\n"


def _literal(text: Sequence[str]) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in text)
    return "\n".join(f'"{line}\\n"' for line in escaped)
