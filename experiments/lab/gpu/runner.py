"""Runner: cases in child processes."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from experiments.children import Lines, gpu_environment, run
from experiments.lab.gpu.cases import Case, Row
from experiments.lab.gpu.rows import Rows
from experiments.lab.gpu.worker import Settings

START_S: Final = 60.0
"""Time limit of the first look at the device."""
COMPILE_S: Final = 45.0
LOOK_S: Final = 15.0
"""Time limit of a look at the device after a child was lost."""
LEAST_S: Final = 3.0
_LOST_OF_GROUP: Final = 2  # children lost to a group, after which its other cases are left
_DUMP_S: Final = 0.5
_TAIL: Final = 400
_LOOK: Final = (
    "import json, jax, jax.numpy as jnp\n"
    "device = jax.devices({platform!r})[0]\n"
    "assert float(jax.device_put(jnp.ones(8), device).sum()) == 8\n"
    "print(json.dumps({{'device': device.device_kind, 'sms': getattr(device, 'core_count', None),\n"
    "    'runtime': device.client.platform_version, 'jax': jax.__version__}}))\n"
)


@dataclass(slots=True)
class Outcome:
    """Counts of a run; `dead`: reason of an early end."""

    counts: Counter[str] = field(default_factory=Counter)
    left: int = 0
    dead: str = ""


def look(platform: str, limit_s: float) -> Mapping[str, Any] | str:
    """Return a device's facts from a child, or a reason."""
    command = [sys.executable, "-c", _LOOK.format(platform=platform)]
    done = run(command, limit_s=limit_s, env=gpu_environment())
    if done.code is None:
        return f"no answer within {limit_s:.0f} s"
    if done.code:
        return done.why
    facts: Mapping[str, Any] = json.loads(done.out.splitlines()[-1])
    return facts


def run_cases(
    cases: Sequence[Case],
    rows: Rows,
    settings: Settings,
    *,
    until: float,
    labels: Mapping[str, Any],
    retry_failed: bool = False,
    alive: Callable[[], str] = lambda: "",
    after: Callable[[], object] = lambda: None,
) -> Outcome:
    """Run the cases without a row, in order."""
    finished = rows.finished(retry_failed=retry_failed)
    todo = [case for case in cases if case.key not in finished]
    outcome, lost, child = Outcome(left=len(todo)), Counter[tuple[str, str]](), None
    try:
        for number, case in enumerate(todo):
            if lost[case.group] >= _LOST_OF_GROUP:
                continue
            if until - time.monotonic() < LEAST_S:
                break
            if child is None or child.env != case.env:
                child = _restart(child, case, settings)
            if case.stage not in child.compiled:
                same = [c for c in todo[number:] if c.stage == case.stage]
                if child.compile_all(same, until)["lost"] and (reason := alive()):
                    outcome.dead = f"the device does not answer before {case.key}: {reason}"
                    break
            rows.begin(case.key)
            begun = time.monotonic()
            answer = child.measure(case, until)
            if answer["lost"] == "hung" and time.monotonic() >= until:
                break  # cut off by the end of the run, which says nothing about the case
            result = {name: answer[name] for name in ("status", "reason", "lost") if answer[name]}
            common = {
                "case": case.key, "stage": case.stage, **result, **labels, **case.spec,
                "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
                "case_s": round(time.monotonic() - begun, 3),
            }  # fmt: skip
            measured = [common | row for row in answer["rows"]] or [common]
            rows.add(measured)
            outcome.counts[answer["lost"] or answer["status"]] += 1
            outcome.left -= 1
            print(line(case, measured), flush=True)
            after()
            if answer["lost"]:
                lost[case.group] += 1
                if reason := alive():
                    outcome.dead = f"the device does not answer after {case.key}: {reason}"
                    break
    finally:
        if child is not None:
            child.close()
    return outcome


def _restart(old: _Child | None, case: Case, settings: Settings) -> _Child:
    if old is not None:
        old.close()
    return _Child(settings, case.env)


class _Child:
    def __init__(self, settings: Settings, env: Mapping[str, str]) -> None:
        self.env = env
        self.compiled: set[str] = set()
        self._settings = settings
        self._lines: Lines | None = None

    def compile_all(self, cases: Sequence[Case], until: float) -> dict[str, Any]:
        specs = [dict(case.spec) for case in cases]
        self.compiled.add(cases[0].stage)
        request = {"stage": cases[0].stage, "compile": specs}
        return self._answer(request, min(time.monotonic() + COMPILE_S, until))

    def measure(self, case: Case, until: float) -> dict[str, Any]:
        limit = min(time.monotonic() + case.limit_s, until)
        return self._answer({"stage": case.stage, "spec": dict(case.spec)}, limit)

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
        self._lines = None

    def _answer(self, request: Mapping[str, Any], limit: float) -> dict[str, Any]:
        if self._lines is None:
            command = [sys.executable, "-m", "experiments.lab.gpu.worker"]
            command.append(json.dumps(asdict(self._settings)))
            env = gpu_environment() | preload(self._settings, self.env)
            self._lines = Lines(command, env=env, channel=True)
        begun = time.monotonic()
        sent = self._lines.tell(json.dumps(request))
        text = self._lines.line(limit) if sent else b""
        empty: dict[str, Any] = {"status": "failed", "reason": "", "lost": "", "rows": []}
        if text:
            result: dict[str, Any] = empty | json.loads(text)
            if result.pop("broken"):
                self.close()
                return result | {"lost": "crashed"}
            return result
        if text is None:
            took = time.monotonic() - begun
            return empty | {
                "lost": "hung",
                "reason": f"no answer after {took:.3g} s{self._where()}",
            }
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._lines.process.wait(1.0)
        reason = f"its process died (exit status {self._lines.process.returncode}). {self._said()}"
        self.close()
        return empty | {"lost": "crashed", "reason": reason}

    def _where(self) -> str:
        assert self._lines is not None
        before = self._lines.said_bytes
        with contextlib.suppress(ProcessLookupError):
            self._lines.process.send_signal(signal.SIGUSR1)
        time.sleep(_DUMP_S)
        frames = re.findall(r'File "([^"]*)", line (\d+) in (\S+)', self._lines.said(before))
        self.close()
        named = [f"{Path(path).name}:{number} {name}" for path, number, name in frames[:3]]
        return f": killed at {' < '.join(named)}" if named else ": killed"

    def _said(self) -> str:
        assert self._lines is not None
        return " ".join(self._lines.said(max(0, self._lines.said_bytes - 8192)).split())[-_TAIL:]


def preload(settings: Settings, env: Mapping[str, str]) -> dict[str, str]:
    """Return a case's environment, with a library for L2 promotion."""
    if "L2_PROMOTION" not in env or settings.tiny:
        return dict(env)
    return dict(env) | {"LD_PRELOAD": str(Path(settings.folder) / "promote.so")}


def line(case: Case, rows: Sequence[Row]) -> str:
    """Return a case's outcome as one line."""
    first = rows[0]
    words = " ".join(f"{name}={value}" for name, value in case.spec.items())
    outcome = first.get("lost") or first["status"]
    if outcome != "ok":
        return f"{case.stage} {words}: {outcome}: {first.get('reason', '')}"
    for column, unit, factor in (
        ("gbps", "GB/s", 1.0),
        ("tflops", "TFLOP/s", 1.0),
        ("time_s", "ms", 1e3),
    ):
        if column in first:
            return f"{case.stage} {words}: {first[column] * factor:.4g} {unit}"
    return f"{case.stage} {words}: ok"
