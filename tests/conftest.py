"""Shared parts of all tests: deterministic examples, the optional shared data, the gpu marker."""

from __future__ import annotations

import ast
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from jaxtyping._import_hook import JaxtypingTransformer

# No deadline: the first example pays for compilation. Derandomised: a red test stays red.
settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.register_profile(
    "search", deadline=None, max_examples=2000
)  # make test ARGS=--hypothesis-profile=search
settings.load_profile("default")

# XLA's CPU threads, which must be there before jax starts: where jax itself interprets (in
# processes that tests start), warpgroups wait for each other inside them, and with one for each of
# two cores a cluster can starve itself for ever.
os.environ.setdefault("NPROC", "32")
# Compiling is most of what tests of models take, and two fifths of it is LLVM's optimisation, which
# is not ours to test.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
)
os.environ.setdefault("MPLBACKEND", "Agg")  # figures are files here; no window is ever opened

# Where it is set, each of the hundreds of processes that tests start compiles all sources again, a
# fifth of what a start costs, and pytest its tests in each of its own.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_transformer: Any = JaxtypingTransformer
_wrapped = _transformer.visit_FunctionDef


def _not_within_another(transformer: Any, node: ast.FunctionDef) -> ast.FunctionDef:
    """Check types of functions of modules and classes only.

    One within another would be wrapped anew at each call of that (milliseconds), and kernels and
    their prediction are made of such.
    """
    if any(isinstance(parent, ast.FunctionDef) for parent in transformer._parents):
        return node
    result: ast.FunctionDef = _wrapped(transformer, node)
    return result


_transformer.visit_FunctionDef = _not_within_another

REPOSITORY = Path(__file__).parents[1]
LARGE_BYTES = 2 << 30  # of a test process
# Tests that take tens of seconds. A process that begins one at the end is waited for.
LONG = (
    "tests/experiments/measured", "tests/experiments/answers", "tests/engine", "tests/docs",
    "tests/systems/cocoserve/test_moves.py", "tests/transformer/test_ahead_of_time.py",
)  # fmt: skip


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with traces, papers and checkpoints; skips where there is none."""
    folder = Path(os.environ.get("C2C_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(
            f"no shared data: {folder.name}/ stands neither beside the checkout nor at C2C_SHARED"
        )
    return folder


@pytest.fixture(scope="session")
def shared_part(shared: Path) -> Callable[[str], Path]:
    """A file or folder of the shared data; skips where it is missing."""

    def part(name: str) -> Path:
        if not (shared / name).exists():
            pytest.skip(f"the shared data lacks {name}")
        return shared / name

    return part


@pytest.fixture(scope="session", autouse=True)
def _own_executables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep executables that tests store from the user's; all processes of a run share them.

    `C2C_TEST_EXECUTABLES` names the folder of several runs. They are found by content, and
    compiling them is most of what tests of models and engines take.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = Path(os.environ.get("C2C_TEST_EXECUTABLES", base / "executables"))
    folder.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PALLAS_KERNELS_REPOSITORY", str(folder / "repository"))
        yield


def pytest_collection() -> None:
    """Look for no garbage while hundreds of modules are imported, of which nearly all stays."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of the longest tests; a module's tests stay together."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_collection_finish() -> None:
    """Look for it again, though not among what was imported."""
    gc.freeze()
    gc.enable()


def pytest_runtest_teardown() -> None:
    """Drop what jax has compiled and traced where that has made this process large."""
    jax, statm = sys.modules.get("jax"), Path("/proc/self/statm")
    if jax is None or not statm.exists():
        return
    if int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > LARGE_BYTES:
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked gpu where its kernels cannot run, saying what is missing."""
    if item.get_closest_marker("gpu") is None:
        return
    from pallas_kernels import device, missing

    if reason := missing("sm90", device()):
        pytest.skip(reason)
