"""A plugin of pytest that notes the lines of code which each passed test runs, as JSON.

SEEN=file SEEN_UNDER=c2c/policies python -m pytest -n 0 -p tests.mutants.seen tests/policies
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, Final

import pytest

_TOOL: Final = sys.monitoring.COVERAGE_ID
_EVENTS: Final = sys.monitoring.events
_UNDER: Final = tuple(f"{Path.cwd() / path}/" for path in os.environ.get("SEEN_UNDER", "").split())

_lines: dict[str, set[int]] = {}
_tests: dict[str, dict[str, Any]] = {}


def _on_start(code: CodeType, _offset: int) -> object:
    if code.co_filename.startswith(_UNDER):
        sys.monitoring.set_local_events(_TOOL, code, _EVENTS.LINE)
    return sys.monitoring.DISABLE


def _on_line(code: CodeType, line: int) -> object:
    _lines.setdefault(code.co_filename, set()).add(line)
    return sys.monitoring.DISABLE


def pytest_configure() -> None:
    """Begin to look."""
    sys.monitoring.use_tool_id(_TOOL, "seen")
    sys.monitoring.register_callback(_TOOL, _EVENTS.PY_START, _on_start)
    sys.monitoring.register_callback(_TOOL, _EVENTS.LINE, _on_line)
    sys.monitoring.set_events(_TOOL, _EVENTS.PY_START)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Forget what was run before the test; what its fixtures run is its own."""
    _lines.clear()
    sys.monitoring.restart_events()
    yield


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the lines of a test that passed."""
    if report.when == "call" and report.passed:
        lines = {os.path.relpath(file): sorted(seen) for file, seen in _lines.items()}
        _tests[report.nodeid] = {"seconds": report.duration, "lines": lines}


def pytest_unconfigure() -> None:
    """Write what was seen."""
    sys.monitoring.free_tool_id(_TOOL)
    Path(os.environ["SEEN"]).write_text(json.dumps(_tests), "utf-8")
