"""Record of compiled and checked programs, by op.

A whole check takes a quarter of an hour of a core. Two hashes tell which programs to skip: one of
an op's sources, which is free to compare, and one of each lowered program, for changed sources
with unchanged compiler input. `python -m pallas_kernels check --record` compiles programs without
either and writes the record; the tests do the same without writing.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pallas_kernels.ahead_of_time.lowered import digest
from pallas_kernels.ahead_of_time.targets import Target
from pallas_kernels.ops import OPS
from pallas_kernels.program import Program
from pallas_kernels.tuned_results import jax_version

RECORD = Path(__file__).with_name("recorded.json")
TARGETS = ("h200", "h200_16sm")
"""What is compiled whole; tests check that an H100 has the code of an H200."""

_PACKAGE = Path(__file__).parents[1]
_NOT_CODE = (  # imported by ops, with no effect on what is compiled
    "pallas_kernels.ahead_of_time",
    "pallas_kernels.capability",
    "pallas_kernels.host_memory",
    "pallas_kernels.tuned_results",
)
_RULES = ("pallas_kernels.ahead_of_time.report", "pallas_kernels.ahead_of_time.targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Passed checks of an op."""

    sources: str = ""  # `fingerprint`, where all programs were; else empty
    programs: frozenset[str] = frozenset()  # `digest_of` each


def fingerprint(op: str) -> str:
    """Return a hash of the sources of `op`, of the rules, and of jax's version.

    Sources are parsed, without docstrings and comments.
    """
    return _hash({*_closure(f"pallas_kernels.{op}.programs"), *_RULES})


def digest_of(program: Program, target: Target) -> str:
    """Return a hash of a lowered program, of its target, of the rules, and of jax's version."""
    return digest(program, target, _hash(set(_RULES)))


def read(record: Path = RECORD) -> dict[str, Checked]:
    """Return the recorded checks, by op."""
    found = json.loads(record.read_text("utf-8")) if record.is_file() else {}
    return {
        op: Checked(sources=one["sources"], programs=frozenset(one["programs"]))
        for op, one in found.items()
    }


def unchecked(record: Path = RECORD) -> tuple[str, ...]:
    """Return the ops whose sources have changed since the record was written."""
    recorded = read(record)
    return tuple(op for op in OPS if recorded.get(op, Checked()).sources != fingerprint(op))


def write(checked: dict[str, Checked], record: Path = RECORD) -> None:
    """Record the passed checks of some ops; other ops keep their entry.

    Args:
      checked: checks by op; each fingerprint is from before the check.
      record: file to write.
    """
    part = record.with_suffix(".part")
    known = {
        op: {"programs": sorted(one.programs), "sources": one.sources}
        for op, one in (read(record) | checked).items()
        if op in OPS
    }
    part.write_text(f"{json.dumps(known, indent=1, sort_keys=True)}\n", "utf-8")
    part.replace(record)


def _hash(modules: set[str]) -> str:
    of_all = hashlib.sha256(f"jax {jax_version()}\n".encode())
    for module in sorted(modules):
        of_all.update(f"{module}\0{_code(_file(module))}\0".encode())
    return of_all.hexdigest()[:16]


def _closure(first: str) -> set[str]:
    """Return the module and all its imports from this package, also inside functions."""
    found, open_ = set[str](), [first]
    while open_:
        module = open_.pop()
        if module in found or module.startswith(_NOT_CODE):
            continue
        found.add(module)
        open_ += _imported(_file(module))
    return found


@functools.cache
def _imported(file: Path) -> tuple[str, ...]:
    return tuple(_imports(ast.parse(file.read_text("utf-8"))))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("pallas_kernels.") and _file(name).is_file():
                yield name


def _file(module: str) -> Path:
    path = _PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def _code(file: Path) -> str:
    tree = ast.parse(file.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:]
    return ast.unparse(tree)
