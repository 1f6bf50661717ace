"""Tests marked gpu as cases."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from experiments.children import ROOT, environment, run
from experiments.lab.gpu.cases import TESTS, Row, Unmeasurable
from experiments.lab.gpu.worker import Settings

_OPTIONS: Final = (
    # The project's own options and conftest need packages that a GPU machine may lack.
    *("-o", "addopts=", "-o", "filterwarnings=default", "--import-mode=importlib", "--noconftest"),
    *("-p", "no:cacheprovider", "-p", "no:terminal", "-m", "gpu", f"--rootdir={ROOT}"),
)
_ENDS: Final = 2  # tests of each function that run before all others
_LIST_S: Final = 60.0
_MOST: Final = 600


class _Reports:
    def __init__(self) -> None:
        self.tests: list[Any] = []
        self.names: list[str] = []
        self.broken: dict[str, str] = {}  # files that cannot be imported, and why

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.broken[report.nodeid] = str(report.longrepr)[-_MOST:]

    def pytest_collection_finish(self, session: Any) -> None:
        self.names = [item.nodeid for item in session.items]

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.tests.append(report)


def _pytest(*arguments: str) -> _Reports:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    reports = _Reports()
    pytest = importlib.import_module("pytest")  # a development package
    pytest.main([*_OPTIONS, *arguments], plugins=[reports])
    return reports


def measure(spec: Mapping[str, Any], settings: Settings) -> list[Row]:
    """Run a test; a failing one raises."""
    os.environ["C2C_TESTS_BACKEND"] = settings.backend
    reports = _pytest(str(ROOT / spec["test"]))
    for report in reports.tests:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            raise AssertionError(crash.message if crash else str(report.longrepr)[-_MOST:])
        if report.skipped:
            raise Unmeasurable(str(report.longrepr[-1]).removeprefix("Skipped: "))
    if reports.broken or not reports.tests:
        raise AssertionError("; ".join(reports.broken.values()) or "pytest finds no such test")
    return [{"test_s": sum(r.duration for r in reports.tests if r.when == "call")}]


def collected(folder: str = TESTS) -> list[str]:
    """Return node ids of a folder's tests but smoke tests, see `in_order`."""
    command = [sys.executable, "-m", "experiments.lab.gpu.suite", folder]
    done = run(command, limit_s=_LIST_S, env=environment() | {"JAX_PLATFORMS": "cpu"})
    names = [name for name in done.out.splitlines() if name.startswith(f"{folder}/")]
    return in_order([name for name in names if "test_smoke" not in name])


def in_order(names: Sequence[str]) -> list[str]:
    """Return first both ends of each function's tests, then the others.

    >>> in_order(["a::f[1]", "a::f[2]", "a::f[3]", "b::g"])
    ['a::f[1]', 'a::f[3]', 'b::g', 'a::f[2]']
    """
    first: list[str] = []
    for _, members in groupby(names, key=lambda name: name.partition("[")[0]):
        tests = list(members)
        first += tests if len(tests) <= _ENDS else [tests[0], tests[-1]]
    return [*first, *(name for name in names if name not in set(first))]


if __name__ == "__main__":
    listed = _pytest("--collect-only", str(ROOT / sys.argv[1]))
    print("\n".join([*listed.broken, *listed.names]))
