"""Persistent compiled stages, loaded without tracing."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from pallas_kernels import tuned_results
from pallas_kernels.program import Argument, Program
from pallas_kernels.repository import (
    Entry,
    Repository,
    RepositoryError,
    RepositoryWarning,
    compiled_for,
    identity,
)

__all__ = ["Executables", "Stage", "executables_at", "in_host_memory", "source_of_stages"]

Run = Callable[..., Any]  # takes the leaves of a stage's arguments

_C2C = Path(__file__).parents[1]
# Jax settings that change the tracing of the same source.
_SETTINGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Pure function: positional arguments are arrays, keywords static.

    Attributes:
      function: depends on arguments and source alone.
      donated: positional arguments of reusable memory.
    """

    name: str
    function: Callable[..., Any]
    donated: tuple[int, ...] = ()
    static: tuple[str, ...] = ()
    jitted: Callable[..., Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        jitted = jax.jit(self.function, static_argnames=self.static, donate_argnums=self.donated)
        object.__setattr__(self, "jitted", jitted)


@dataclass(slots=True)
class _State:
    loaded: int = 0
    compiled: int = 0
    usable: bool = True
    stored: tuple[Entry, ...] | None = None  # repository entries at the first miss


# An executable depends on shapes and settings, never on values or a model's name. Models of one
# architecture share it, in this process and, through a repository, in all others. Source: MEDUSA
# starts from materialised CUDA graphs; here the state is XLA's executables.
class Executables:
    """Compiled stages of a repository; None: jax compiles."""

    def __init__(self, folder: Path | str | None = None, *, strict: bool = True) -> None:
        """Set the repository's folder, created on first use.

        Args:
          folder: by default the one of `pallas_kernels.repository`.
          strict: whether an unusable one is an error, not a warning.
        """
        self.repository = Repository(folder)
        self._strict = strict
        self.device: Any = None  # jax's first
        self._found: dict[Hashable, Run] = {}
        self._making: dict[Hashable, threading.Lock] = {}  # one thread compiles each
        self._state = _State()

    def on(self, device: Any) -> Executables:
        """Return these for another device (None: jax's first), uncompiled."""
        other = copy.copy(self)
        other.device = device
        return other

    @property
    def loaded(self) -> int:
        """Executables loaded from the repository, on all devices."""
        return self._state.loaded

    @property
    def compiled(self) -> int:
        """Executables compiled so far, on all devices."""
        return self._state.compiled

    def bind(self, stage: Stage) -> Callable[..., Any]:
        """Return the stage's function, faster for repeated shapes."""
        last: tuple[Any, dict[str, Any], Run] | None = None

        def call(*args: Any, **static: Any) -> Any:
            nonlocal last
            leaves, tree = jax.tree.flatten(args)
            if last is not None and last[0] == tree and last[1] == static:
                try:
                    return last[2](*leaves)
                except TypeError:  # of other shapes, which jax sees before it runs anything
                    last = None
            leaves = [_array(leaf) for leaf in leaves]
            last = tree, static, self.find(stage, leaves, tree, static)
            return last[2](*leaves)

        return call

    def bind_ahead(self, stage: Stage) -> Callable[..., Any]:
        """Return a function that finds the executable; it returns shapes."""

        def call(*args: Any, **static: Any) -> Any:
            leaves, tree = jax.tree.flatten(args)
            run: Any = self.find(stage, [_array(leaf) for leaf in leaves], tree, static)
            return run.out_info

        return call

    def find(self, stage: Stage, leaves: Sequence[Any], tree: Any, static: dict[str, Any]) -> Run:
        """Return the executable for these shapes.

        Args:
          leaves: arrays or `jax.ShapeDtypeStruct`s, of `tree`.
          static: keyword arguments.

        Raises:
          RepositoryError: unusable, with `strict`.
        """
        shapes = tuple((leaf.shape, leaf.dtype, in_host_memory(leaf)) for leaf in leaves)
        device = jax.devices()[0] if self.device is None else self.device
        key = (device, stage, tree, shapes, tuple(sorted(static.items())))
        if (result := self._found.get(key)) is not None:
            return result
        with self._making.setdefault(key, threading.Lock()):
            if (result := self._found.get(key)) is not None:
                return result
            arguments = tuple(
                Argument(shape=tuple(shape), dtype=str(dtype), host=host)
                for shape, dtype, host in shapes
            )
            result = self._made(_program(stage, arguments, tree, static), device)
            self._found[key] = result
        return result

    def _made(self, program: Program, device: Any) -> Run:
        state = self._state
        if not state.usable:
            state.compiled += 1
            return compiled_for(program, device, to_store=False)[0]
        try:
            run = self.repository.load(program, device)
            if run is not None:
                state.loaded += 1
                return run
            self._remove_outdated(program, device)
        except RepositoryError as error:
            self._unusable(error)
        run, seconds = compiled_for(program, device, to_store=state.usable)
        state.compiled += 1
        try:
            if state.usable:
                self.repository.put(identity(program, device), run, compile_s=seconds)
        except RepositoryError as error:
            self._unusable(error)
        return run

    def _unusable(self, error: RepositoryError) -> None:
        if self._strict:
            raise error
        self._state.usable = False
        warnings.warn(
            f"{error}. Executables are not stored; each process compiles its own",
            RepositoryWarning,
            stacklevel=2,
        )

    def _remove_outdated(self, program: Program, device: Any) -> None:
        program_key = identity(program, device)
        if self._state.stored is None:
            self._state.stored = self.repository.entries()
        for entry in self._state.stored:
            if program_key.outdated(entry.identity):
                warnings.warn(
                    f"{program_key.op} {program_key.name}: stored executable is stale "
                    f"({'; '.join(program_key.differences(entry.identity))}); compiling it anew",
                    RepositoryWarning,
                    stacklevel=2,
                )
                self.repository.remove(entry)


def executables_at(
    where: Executables | Path | str | Literal["auto"] | None,
) -> Executables | None:
    """Return a folder's executables, the same object each time.

    Args:
      where: "auto": the default, perhaps unusable; None and `Executables` are returned.
    """
    if where is None or isinstance(where, Executables):
        return where
    if where == "auto":
        from pallas_kernels.repository import default_folder

        return _opened(default_folder().absolute(), False)
    return _opened(Path(where).absolute(), True)


@functools.cache
def _opened(folder: Path, strict: bool) -> Executables:
    return Executables(folder, strict=strict)


def _array(leaf: Any) -> Any:
    if isinstance(leaf, bool | int | float):
        kind = {bool: np.bool_, int: np.int32, float: np.float32}[type(leaf)]
        return kind(leaf)
    if not hasattr(leaf, "dtype"):
        raise TypeError(f"{leaf!r}: expected arrays and numbers as positional arguments")
    return leaf


def in_host_memory(leaf: Any) -> bool:
    """Return whether an array is in pinned host memory."""
    sharding = getattr(leaf, "sharding", None)  # NumPy's arrays and scalars have none
    return sharding is not None and sharding.memory_kind == "pinned_host"


def _program(
    stage: Stage, arguments: tuple[Argument, ...], tree: Any, static: dict[str, Any]
) -> Program:
    def function(*leaves: Any) -> Any:
        return stage.function(*jax.tree.unflatten(tree, leaves), **static)

    donated: list[int] = []
    first = 0
    for number, child in enumerate(tree.children()):
        if number in stage.donated:
            donated.extend(range(first, first + child.num_leaves))
        first += child.num_leaves
    config: Any = jax.config
    settings = {name: getattr(config, name) for name in _SETTINGS}
    settings |= {"XLA_FLAGS": os.environ.get("XLA_FLAGS", ""), "cores": os.cpu_count()}
    return Program(
        op="transformer",
        name=stage.name,
        function=function,
        arguments=arguments,
        shared_bytes=0,
        opcodes=frozenset(),
        donated=tuple(donated),
        source=source_of_stages(inspect.getfile(stage.function)),
        key=(
            ("tree", str(tree)),
            *((name, repr(value)) for name, value in sorted(static.items())),
            *((name, str(value)) for name, value in settings.items()),
        ),
    )


@functools.cache
def source_of_stages(file: str) -> str:
    """Return a hash of the source of a file's stages."""
    ours, tuned = hashlib.sha256(), hashlib.sha256()
    for folder in dict.fromkeys((_C2C / "models", _C2C / "transformer", Path(file).parent)):
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder).as_posix()
            ours.update(name.encode() + b"\0" + path.read_bytes())
    for folder in tuned_results.folders():
        for path in sorted(folder.glob("*.json")):
            tuned.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"c2c {ours.hexdigest()[:16]}, tuned {tuned.hexdigest()[:16]}"
