"""Section `profile`: shares of a launch's time, from events that its warpgroups record.

AsymGEMM alone (alpha 0) on the paper's shape, in the chosen configuration less the slots of X whose
memory the events take. Both launches are one case, so that they cannot cost two processes, which
would move the weights of later sections to device memory.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import jax

from c2c.atomic import atomic_file
from experiments.gpu import Case, Context, Row, Scale, wait
from experiments.gpu.cases import Unmeasurable
from experiments.gpu.kernels import launching, operands
from experiments.gpu.kernels.facts import FIG4
from pallas_kernels.gemm import with_profile

ROWS = (64, 10240)
SCOPES = ("wait_x", "wait_w", "products", "stores", "read_sums", "wait_sums")
_LAUNCHES = 50  # the last one is recorded, at the clocks of a busy device
_KEPT = 16  # warpgroups in the stored trace
_WRAP = 2**32 / 1e3  # period of a trace's clock, in its unit of 1000 cycles


def cases(scale: Scale) -> list[Case]:  # noqa: ARG001 - the same at each
    """List the only case."""
    return [Case(spec={"fact": "profile"}, least_s=20.0, host="only")]


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:  # noqa: ARG001 - only one
    """Return a row for each number of rows.

    Raises:
      Unmeasurable: there is no GPU, no folder for traces, or no trace.
    """
    if context.backend != "sm90":
        raise Unmeasurable("only a GPU records a kernel's events")
    if not context.folder:
        raise Unmeasurable("no folder for the traces")
    return [_row(m, context) for m in ROWS]


def _row(m: int, context: Context) -> Row:
    k, n = FIG4
    w = operands.weights(k, n, 2, "host", context.seed)
    x = operands.activations(m, k, context)
    gemm, chosen = launching.configuration(m, k, n, 2, 1, context)
    with tempfile.TemporaryDirectory() as folder:
        config, profile = with_profile(chosen, gemm, folder)
        launch = launching.hybrid(x, w, context, alpha=0.0, config=config, profile=profile)
        for number in range(_LAUNCHES):
            if number == _LAUNCHES - 1:
                _written(folder).unlink()  # the first launch's; jax never replaces it
            wait(launch(number))
        events = json.loads(_written(folder).read_text("utf-8"))["traceEvents"]
    found = shares(events, profile.tiles)
    return {
        "k": k,
        "n": n,
        "m": m,
        "alpha": 0.0,
        "config": json.dumps(asdict(config)),
        "x_slots": config.asym_stages,
        "x_slots_chosen": chosen.asym_stages,
        "warpgroups": len(found),
        "trace": _keep(events, Path(context.folder) / "profile" / f"m{m}.json.gz"),
        **{f"{scope}_share": median(one[scope] for one in found) for scope in SCOPES},
    }


def _written(folder: str) -> Path:
    """Return the path of the trace that the launches so far have written."""
    until_written: Any = jax.effects_barrier  # untyped
    until_written()
    trace = next(Path(folder).glob("*-trace.json"), None)
    if trace is None:
        raise Unmeasurable("jax has written no trace")
    return trace


def _keep(events: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Write the events of some warpgroups for a viewer of Chrome traces; return the file's name."""
    some = set(list(dict.fromkeys(event["tid"] for event in events))[:_KEPT])
    text = json.dumps({"traceEvents": [event for event in events if event["tid"] in some]})
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(gzip.compress(text.encode(), mtime=0))
    return path.name


def shares(events: Sequence[Mapping[str, Any]], tiles: int) -> list[dict[str, float]]:
    """Return the share of each scope in its time, for each warpgroup that computed.

    The first tile of a pass, which waits for W, counts once; the recorded later tiles are scaled up
    to all later tiles. The time of a range excludes the ranges inside it.

    Args:
      events: starts ("B") and ends ("E") of ranges, in order for each `tid`, a warpgroup.
      tiles: tiles of a warpgroup in a pass.
    """
    traces: dict[int, list[Mapping[str, Any]]] = {}
    for event in events:
        if event["name"] in SCOPES:  # jax adds a scope of its own, also in the loading warpgroup
            traces.setdefault(event["tid"], []).append(event)
    return [_of_warpgroup(one, tiles) for one in traces.values()]


def _of_warpgroup(events: Sequence[Mapping[str, Any]], tiles: int) -> dict[str, float]:
    between, sections = defaultdict[str, float](float), list[defaultdict[str, float]]()
    open_ = list[Mapping[str, Any]]()
    for event in events:
        name = event["name"]
        if event["ph"] == "B":
            if name == "products":
                sections.append(defaultdict(float))
            open_.append(event)
            continue
        time = (event["ts"] - open_.pop()["ts"]) % _WRAP
        into = between if name == "wait_sums" else sections[-1]
        into[name] += time
        if open_:
            into[open_[-1]["name"]] -= time
    first = [one for one in sections if "wait_w" in one]
    later = [one for one in sections if "wait_w" not in one]
    weight = (tiles - 1) * len(first) / len(later) if later else 0.0
    times = {
        scope: between[scope]
        + sum(one[scope] for one in first)
        + weight * sum(one[scope] for one in later)
        for scope in SCOPES
    }
    return {scope: time / sum(times.values()) for scope, time in times.items()}
