"""Answers to the page."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, Final

import msgspec

from c2c.config import (
    Settings,
    SimulationResult,
    build,
    checked,
    load,
    overrides_of,
    simulate,
)
from c2c.errors import SettingError
from c2c.metrics import Line, latency_charts, latency_table
from experiments.answers.combinations import Composer
from experiments.command import in_one_line
from experiments.explore.timeline import model_colours, time_charts
from experiments.figures.style import system_colours

__all__ = ["Answers", "Asked"]

PHASES: Final = 100_000
_SYSTEMS = 2

type _Words = tuple[str, ...]
type _Numbers = tuple[tuple[str, float], ...]


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """State of the page's controls.

    Attributes:
      choices: files by group, such as hardware.
      path: file of the trace; "": none.
    """

    systems: list[str]
    choices: dict[str, str]
    numbers: dict[str, int | float]
    more: str = ""
    path: str = ""


class Answers:
    """Answers for at most `most` requests, with last runs remembered."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._own = [f"--config-dir={folder}" for folder in load().conf]
        self._composer = Composer()
        self._composed = lru_cache(64)(self._checked)
        self._simulated = lru_cache(16)(self._run)

    def answer(self, query: Asked) -> dict[str, Any]:
        """Return pictures as HTML, their command line, and the seconds."""
        began_s = time.perf_counter()
        systems, words, numbers = _settings(query)
        colours, models = system_colours(systems), dict[str, str]()
        lines, columns = [], []
        for system in systems:
            overrides, colour = (*words, f"system={system}"), colours[system][0]
            try:
                result = self._simulated(overrides, numbers)
            except Exception as error:
                fault = in_one_line(error, overrides)
                if fault is None:
                    raise
                body = f'<p class="error">{escape(fault)}</p>'
            else:
                models = models or model_colours(result)
                lines.append(Line(system, result.requests, *colours[system]))
                body = _shown(result, models, colour)
            head = f'<h2><i style="background:{colour}"></i>{escape(system)}</h2>'
            columns.append(f"<section>{head}{body}</section>")
        charts = f'<div class="pair">{latency_charts(lines)}</div>' if lines else ""
        return {
            "html": f'{charts}<div class="pair">{"".join(columns)}</div>',
            "command": _command(self._own, query, systems, words, numbers),
            "seconds": time.perf_counter() - began_s,
        }

    def _checked(self, words: _Words) -> Settings:
        return checked(self._composer.composed(words))

    def _run(self, words: _Words, numbers: _Numbers) -> SimulationResult:
        settings = self._composed(words).with_({**dict(numbers), "timeline.rows": PHASES})
        workload = settings["workload"]
        name = "max_requests" if workload["kind"] == "trace" else "requests"
        count = workload[name] * (1 if name == "max_requests" else workload["replicas"])
        if not 1 <= count <= self._most and (workload["path"] or name == "requests"):
            hint = f"For more: c2c explore most={count}." if count > self._most else ""
            raise SettingError(f"workload.{name}", count, f"from 1 to {self._most}", hint)
        return simulate(build(settings), compiled=True)


def _settings(query: Asked) -> tuple[list[str], _Words, _Numbers]:
    systems = list(dict.fromkeys(query.systems))
    if not 1 <= len(systems) <= _SYSTEMS:
        raise SettingError("systems", systems, "one system or two")
    try:
        more = shlex.split(query.more)
    except ValueError as error:
        raise SettingError("settings", query.more, "paired quotes") from error
    shown = {"system", *query.choices, *query.numbers, "workload.path"}
    for one in more:
        name, sign, value = one.partition("=")
        if not sign or name.startswith("-"):
            raise SettingError("settings", one, "name=value, with spaces between several")
        if name in shown:
            raise SettingError(name, value, "a value by its control on this page")
    words = [f"{group}={name}" for group, name in query.choices.items()]
    if query.path:
        words.append(_path(query.path))
    return systems, (*words, *more), tuple(query.numbers.items())


def _path(path: str) -> str:
    return overrides_of({"workload__path": path})[0]


def _command(
    own: Sequence[str], query: Asked, systems: Sequence[str], words: _Words, numbers: _Numbers
) -> str:
    path = query.path
    shown = [_path(Path(path).name) if path and word == _path(path) else word for word in words]
    values = [f"{name}={value}" for name, value in numbers]
    sweep = ["-m"] if len(systems) > 1 else []
    system = f"system={','.join(systems)}"
    return shlex.join(["c2c", "simulate", *sweep, *own, system, *shown, *values])


def _shown(result: SimulationResult, models: Mapping[str, str], colour: str) -> str:
    verdict = map(escape, (result.summary["verdict"] or {}).get("text", ()))
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.setup.notes)
    return (
        f'<p class="verdict">{"<br/>".join(verdict)}</p>{latency_table(result.summary)}'
        f"{time_charts(result, models, colour)}"
        + (f"<details><summary>Notes</summary><ul>{notes}</ul></details>" if notes else "")
    )
