"""Fleets that serve: price, latencies and margins."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Final

from c2c.config import RunSetup, build
from experiments.answers.interval import interval_of
from experiments.answers.model_error import held_out_error
from experiments.answers.quantity import quantity_of, with_value
from experiments.answers.race import Standing, Trial
from experiments.answers.trials import Runs, outcome_of

__all__ = ["LOADS", "MOST_TOLD", "add_margins", "in_order", "serving", "told"]

MOST_TOLD: Final = 8  # fleets whose margins are searched, beside ties and the best of each chip
# Multiples of the workload's load at which a fleet is tried.
LOADS: Final = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


def serving(
    runs: Runs, standings: Mapping[int, Standing], part: int, overrides: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the fleets that serve a part, cheapest first."""
    return in_order(
        _fleet(runs, Trial(arm, int(one.serves), part, 0), overrides)
        for arm, one in standings.items()
        if one.part == part and one.serves < float("inf")
    )


def in_order(fleets: Collection[dict[str, Any]] | Any) -> list[dict[str, Any]]:
    """Return fleets by price, longer steps, load left and TTFT."""
    return sorted(
        fleets,
        key=lambda one: (
            one["usd_per_hour"], not one.get("serves_if_slower"), -one.get("serves_load", 0.0),
            one["ttft_p99_s"],
        ),
    )  # fmt: skip


def told(fleets: Sequence[dict[str, Any]], named: Collection[str]) -> list[dict[str, Any]]:
    """Return the fleets whose margins are searched."""
    lowest: dict[str, float] = {}
    chosen = []
    for k, one in enumerate(fleets):
        is_first = one["chip"] not in lowest
        usd = lowest.setdefault(one["chip"], one["usd_per_hour"])
        is_tie = one["usd_per_hour"] in (
            fleets[0]["usd_per_hour"], usd if one["chip"] in named else None
        )  # fmt: skip
        if k < MOST_TOLD or is_tie or is_first:
            chosen.append(one)
    return chosen


def _fleet(runs: Runs, key: Trial, overrides: Sequence[str]) -> dict[str, Any]:
    kind, chips = runs.arms[key.arm], key.chips
    mine = {
        trial.seed: point.summary
        for trial, point in runs.found.items()
        if replace(trial, seed=0) == key
    }
    every = list(mine.values())
    met = interval_of([one["verdict"]["met"] for one in every])
    usd = round(chips * kind.usd_per_hour, 6)
    million_hours = 1e6 / fmean(one["output_tokens_per_s"] for one in every) / 3600.0
    power = None if kind.power_w is None else chips * kind.power_w * million_hours / 1e3
    fixed = [
        g for g in overrides
        if not g.startswith(("out=", "folder=")) and g.partition("=")[0] not in kind.params
    ]  # fmt: skip
    folders = dict.fromkeys(runs.settings(key)["conf"])
    return {
        "arm": key.arm,
        "fleet": kind.with_chips(chips),
        "spoken": kind.spoken(chips),
        "chip": kind.chip,
        "layout": kind.layout,
        "system": " ".join(filter(None, (kind.system, kind.rest))),
        "params": dict(kind.params),
        "chips": chips,
        "requests": key.part,
        "usd_per_hour": usd,
        "usd_per_million_tokens": usd * million_hours,
        "kwh_per_million_tokens_at_most": power,
        "met": met.mean,
        "met_half": met.half,
        "ttft_p99_s": fmean(one["ttft_s"]["p99"] for one in every),
        "tpot_p99_s": fmean(one["tpot_s"]["p99"] or 0.0 for one in every),
        "command": shlex.join(
            ["c2c", "simulate", *(f"--config-dir={one}" for one in folders), *fixed,
             *kind.name.split(), f"superchips={chips}", f"seed={min(mine)}"]
        ),
    }  # fmt: skip


def add_margins(
    runs: Runs, fleets: Sequence[dict[str, Any]], base: RunSetup, error: float | None
) -> None:
    """Add each fleet's breaking load, and the result with longer steps."""
    settings: list[dict[str, Any]] = []
    slower: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for one in fleets:
        seeds = runs.seeds(one["arm"], one["chips"])
        every = [runs.settings(Trial(one["arm"], one["chips"], runs.requests, s)) for s in seeds]
        settings.append(every[0])
        longer, source = _longer(every[0], error)
        one |= {"error": longer, "error_of": source, "serves_if_slower": None, "binds": None}
        if not every[0]["node"]:
            scale = {key: value / (1.0 + longer) for key, value in every[0]["scale"].items()}
            slower += [(one, config | {"scale": scale}) for config in every]
    for (one, _), point in zip(slower, runs.run([config for _, config in slower]), strict=True):
        one["serves_if_slower"] = one["serves_if_slower"] is not False and outcome_of(point).meets
    search = [
        (one, config, _quantity(config, base), [0, len(LOADS)])
        for one, config in zip(fleets, settings, strict=True)
        if config["workload"]["kind"] != "closed_loop"
    ]
    while search := [config for config in search if config[3][0] < config[3][1]]:
        tried = [sum(between) // 2 for *_, between in search]
        queries = [
            with_value(config, quantity, LOADS[k] * quantity.start, config["seed"])
            for (_, config, quantity, _), k in zip(search, tried, strict=True)
        ]
        for (one, _, _, between), k, point in zip(search, tried, runs.run(queries), strict=True):
            meets = outcome_of(point).meets
            between[not meets] = k + meets
            if not meets:
                one["binds"] = (point.summary.get("verdict") or {}).get("binds")
            low, high = between
            one["serves_load"] = LOADS[low - 1] if low else 1.0
            one["breaks_at_load"] = LOADS[high] if high < len(LOADS) else None


def _longer(settings: Mapping[str, Any], error: float | None) -> tuple[float, str]:
    if error is not None:
        return error, "advise.error"
    parts = [part["hardware"] for part in settings["fleet"]["parts"]]
    chips = parts or settings["node"].get("gpus")
    return max(map(held_out_error, chips or [settings["hardware"].get("name", "")]))


def _quantity(settings: Mapping[str, Any], base: RunSetup) -> Any:
    is_same = settings["workload"] == base.settings["workload"]
    return quantity_of("rate", base if is_same else build(settings))
