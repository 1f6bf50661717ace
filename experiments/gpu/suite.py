"""Tests as cases, a row each: one pytest process runs single tests on request.

    python -m experiments.gpu.suite <folder or file of tests> <file for the list>

lists the tests (a case each). `serve` runs them: pytest collects once, then waits for the name of a
test, runs it and answers. The parent stores the answer before it requests the next test, so that a
test that crashes costs no rows of others, and a test that hangs is the last one requested.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from experiments.children import ROOT, environment, run
from experiments.gpu.cases import Backend, Case, Context

LIMIT_S, FIRST_LIMIT_S, LEAST_S = 20.0, 90.0, 3.0
LIST_LIMIT_S = 60.0
MOST_MESSAGE = 600

Say = Callable[[dict[str, Any]], None]
Listed = dict[str, Any]
"""A test: `test` (file and name), `function`, `host` and, if the test sets it, `limit_s`."""

# The project's own options and conftest need packages that a GPU machine may lack.
_OPTIONS = (
    *("-o", "addopts=", "-o", "filterwarnings=default", "--import-mode=importlib"),
    *("--noconftest", "-p", "no:cacheprovider", "-p", "no:terminal", "--capture=no"),
    *("-m", "gpu", "--continue-on-collection-errors", f"--rootdir={ROOT}"),
)


def cases_of(listed: Iterable[Listed]) -> list[Case]:
    """Return a case for each test."""
    return [
        Case(
            spec={"test": one["test"]},
            limit_s=one.get("limit_s", LIMIT_S),
            most_s=max(FIRST_LIMIT_S, one.get("limit_s", LIMIT_S)),
            least_s=LEAST_S,
            group=one["function"],
            host=one.get("host", ""),
        )
        for one in listed
    ]


@cache
def collected(path: Path, limit_s: float = LIST_LIMIT_S) -> tuple[Listed, ...]:
    """Return the tests under `path`; a file that cannot be imported counts as a test.

    Raises:
      RuntimeError: pytest lists no tests; the message ends with its last output.
    """
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "tests.json"
        done = run(
            [sys.executable, "-m", "experiments.gpu.suite", str(path), str(told)],
            limit_s=limit_s,
            env=environment() | {"JAX_PLATFORMS": "cpu"},
        )
        listed = json.loads(told.read_text("utf-8")) if told.exists() else []
        if not listed:
            said = " ".join((done.out + done.errors).split())[-MOST_MESSAGE:]
            raise RuntimeError(f"pytest listed no tests (exit status {done.code}): {said}")
        return tuple(listed)


def serve(path: Path, context: Context, requests: Iterable[str], say: Say) -> None:
    """Collect the tests under `path` and run the requested ones."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # XLA's products are only a reference here: their speed does not matter
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"
    os.environ["C2C_TESTS_BACKEND"] = context.backend
    with tempfile.TemporaryDirectory() as own:  # only executables of this source
        os.environ["PALLAS_KERNELS_REPOSITORY"] = own
        _pytest(path, Server(requests, say, context.backend))


class Lister:
    """Pytest plugin that writes a list of the collected tests."""

    def __init__(self, told: Path) -> None:
        self._told = told
        self._broken: list[Listed] = []

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            name = _short(report.nodeid)
            self._broken.append({"test": name, "function": name})

    def pytest_collection_finish(self, session: Any) -> None:
        """Write the list."""
        listed = [*self._broken, *map(_listed, session.items)]
        self._told.write_text(json.dumps(listed), encoding="utf-8")

    def pytest_runtestloop(self) -> bool:
        """Run nothing."""
        return True


class Server:
    """Pytest plugin that runs the requested tests and answers with their outcomes."""

    def __init__(self, requests: Iterable[str], say: Say, backend: Backend) -> None:
        self._requests, self._say, self._backend = requests, say, backend
        self._reports: list[Any] = []
        self._broken: dict[str, str] = {}

    def pytest_collectreport(self, report: Any) -> None:
        """Keep the import error of a file, to answer a request for it."""
        if report.failed:
            self._broken[_short(report.nodeid)] = str(report.longrepr)[-MOST_MESSAGE:]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the outcome of a test's set-up, call and tear-down."""
        self._reports.append(report)

    def pytest_runtestloop(self, session: Any) -> bool:
        """Replace pytest's own loop over all tests."""
        items = {_short(item.nodeid): item for item in session.items}
        tell_of_compiling(self._say)
        lacks = lacking(self._backend)  # starts the device outside any test's time
        self._say({"status": "ready"})
        for line in self._requests:
            asked = json.loads(line)
            name = asked["test"]
            os.environ["C2C_TESTS_WEIGHTS"] = asked.get("w_in", "host")
            if lacks:
                self._say({"status": "skipped", "reason": lacks, "rows": []})
            elif name in self._broken:
                self._say(failed("error", self._broken[name]))
            elif name not in items:
                self._say(failed("error", "pytest finds no such test"))
            else:
                self._reports = []
                item = items[name]
                # no next item, since the next request is unknown: fixtures that a module's tests
                # share are made again
                item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
                self._say(answer(self._reports))
        return True


def answer(reports: Sequence[Any]) -> dict[str, Any]:
    """Return the worker's answer for the reports of one test."""
    row: dict[str, Any] = {
        "result": "ok",
        "test_s": sum(r.duration for r in reports if r.when == "call"),
    }
    for report in reports:
        if report.failed:
            return failed("failure" if report.when == "call" else "error", _message(report), row)
        if report.skipped:
            reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else "")
            reason = reason.removeprefix("Skipped: ")
            return {"status": "skipped", "reason": reason, "rows": [row | {"result": "skipped"}]}
    return {"status": "ok", "rows": [row]}


def failed(result: str, message: str, row: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the worker's answer for a test that did not pass."""
    rows = [{**(row or {}), "result": result, "message": message}]
    return {"status": "failed", "reason": message, "rows": rows}


def lacking(backend: Backend) -> str:
    """Return why this device cannot run the kernels; "" if it can."""
    from pallas_kernels import device, missing

    return missing(backend, device()) or ""


def tell_of_compiling(say: Say) -> None:
    """Report the start and the seconds of each compilation by jax, to stop the test's clock."""
    import jax

    class Begins(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if str(record.msg).startswith("Compiling "):
                say({"compiling": True})

    def took(event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith("/jax/core/compile/"):  # tracing and lowering, too
            say({"compiling": False, "took_s": duration_secs})

    log = logging.getLogger("jax._src.interpreters.pxla")
    log.addHandler(Begins())
    log.setLevel(logging.DEBUG)
    log.propagate = False
    jax.monitoring.register_event_duration_secs_listener(took)


def _pytest(path: Path, plugin: object) -> int:
    # a development package that a machine for measurements may lack
    pytest = importlib.import_module("pytest")
    return int(pytest.main([*_OPTIONS, str(path)], plugins=[plugin]))


def _message(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    where = f" ({Path(crash.path).name}:{crash.lineno})" if crash else ""
    return (crash.message if crash else str(report.longrepr))[:MOST_MESSAGE] + where


def _short(nodeid: str) -> str:
    """Return the file and name of a test, without folders.

    >>> _short("tests/gpu/test_a.py::test_b[1]")
    'test_a.py::test_b[1]'
    """
    path, separator, name = nodeid.partition("::")
    return path.rpartition("/")[2] + separator + name


def _listed(item: Any) -> Listed:
    name = _short(item.nodeid)
    marker = item.get_closest_marker("limit_s")
    limit = {"limit_s": float(marker.args[0])} if marker else {}
    host = item.get_closest_marker("host_read")
    return {
        "test": name,
        "function": name.partition("[")[0],
        "host": str(host.args[0]) if host else "",
        **limit,
    }


if __name__ == "__main__":
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.exit(_pytest(Path(sys.argv[1]), Lister(Path(sys.argv[2]))))
