"""Files of `experiments` that a module runs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

__all__ = ["imported_files"]

# Content keys of figures cover these files. Whole folders would not do: a file added beside a
# figure's module would throw away a finished result.
_ROOT = Path(__file__).parent
_NAME = _ROOT.name


def imported_files(modules: Iterable[str]) -> tuple[Path, ...]:
    """Return the files of `experiments` and of all its imports."""
    waiting, files = list(modules), set()
    while waiting:
        if (path := _file(waiting.pop())) and path not in files:
            files.add(path)
            waiting.extend(_imports(path))
    return tuple(sorted(files))


def _file(module: str) -> Path | None:
    first, *rest = module.split(".")
    path = _ROOT.joinpath(*rest)
    if first != _NAME:
        return None
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


@cache
def _imports(path: Path) -> frozenset[str]:
    return frozenset(_named(ast.parse(path.read_text("utf-8"))))


def _named(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        for name in names:
            if name.startswith(f"{_NAME}."):
                parts = name.split(".")
                yield from (".".join(parts[:n]) for n in range(2, len(parts) + 1))
