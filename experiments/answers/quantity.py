"""Quantities of a capacity search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import ceil
from typing import Any

from c2c.config import RunSetup
from c2c.errors import SettingError

__all__ = ["QUANTITIES", "Quantity", "between", "override_of", "quantity_of", "with_value"]

QUANTITIES = ("rate", "models", "superchips")
_STEADY = ("poisson", "deterministic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Quantity that a capacity search varies.

    Attributes:
      is_whole: whether of whole numbers.
      more_is_harder: whether larger values are harder.
      start: first value.
      lowest, highest: bounds of the search.
    """

    name: str
    unit: str
    is_whole: bool
    more_is_harder: bool
    start: float
    lowest: float
    highest: float


def quantity_of(name: str, setup: RunSetup) -> Quantity:
    """Return this quantity, starting at its value in the settings."""
    if name == "rate":
        rate = _rate_rps(setup)
        return Quantity(
            name=name, unit="requests/s", is_whole=False, more_is_harder=True, start=rate,
            lowest=rate / 4096, highest=rate * 4096,
        )  # fmt: skip
    if name == "models":
        if setup.workload.description["assignment"]["rule"] == "own":
            raise SettingError(
                "capacity.of", name, "another quantity, as each id of the trace is a model",
                "workload.assignment=popularity_rank lets ids share any number of models.",
            )  # fmt: skip
        count = len(setup.serving.deployments)
        return Quantity(
            name=name, unit="models", is_whole=True, more_is_harder=True, start=count,
            lowest=1, highest=max(4096, count),
        )  # fmt: skip
    if name == "superchips":
        ranks = _ranks(setup.settings)
        count = setup.settings["superchips"] // ranks
        unit = "fleets" if setup.serving.beside else "Superchips"
        if ranks > 1:
            unit = f"devices of {ranks} chips"
        return Quantity(
            name=name, unit=unit, is_whole=True, more_is_harder=False, start=count,
            lowest=1, highest=max(1024, count),
        )  # fmt: skip
    raise SettingError("capacity.of", name, f"one of {', '.join(QUANTITIES)}")


def with_value(
    settings: Mapping[str, Any], quantity: Quantity, value: float, seed: int
) -> dict[str, Any]:
    """Return a run's settings with this value."""
    changed = deepcopy(dict(settings))
    changed["seed"] = seed
    workload = changed["workload"]
    if quantity.name == "superchips":
        changed["superchips"] = int(value) * _ranks(settings)
    elif quantity.name == "models":
        changed["catalog"] = _catalog(changed["catalog"], int(value))
    elif workload["kind"] in _STEADY:
        workload["rate_rps"] = value / workload["compression"] / workload["replicas"]
    else:
        workload["compression"] *= value / quantity.start
    return changed


def override_of(settings: Mapping[str, Any], quantity: Quantity, value: float) -> str:
    """Return this value's setting; "" for models."""
    changed = with_value(settings, quantity, value, 0)
    if quantity.name == "rate":
        kind = "rate_rps" if changed["workload"]["kind"] in _STEADY else "compression"
        return f"workload.{kind}={changed['workload'][kind]:.4g}"
    return f"superchips={changed['superchips']}" if quantity.name == "superchips" else ""


def _ranks(settings: Mapping[str, Any]) -> int:
    return 1 if settings["fleet"]["parts"] else int(settings["tensor_parallel"])


def _rate_rps(setup: RunSetup) -> float:
    workload = setup.settings["workload"]
    if workload["kind"] in _STEADY:
        return float(workload["rate_rps"] * workload["compression"] * workload["replicas"])
    rate = setup.workload.description["mean_rate_rps"]
    if not rate:
        raise SettingError(
            "capacity.of", "rate", "another quantity, as all requests arrive at once"
        )
    return float(rate)


def _catalog(catalog: Mapping[str, Any], count: int) -> dict[str, Any]:
    entries: Sequence[Mapping[str, Any]] = catalog["models"]
    had = [int(entry.get("copies", 1)) for entry in entries]
    # Full rounds over all models; a last, incomplete round takes its first models.
    rounds, remainder = divmod(count, sum(had))
    order = sorted(
        (k / copies, i) for i, copies in enumerate(had) for k in range(copies)
    )  # one model of each entry before the second of any
    more = [0] * len(entries)
    for _, i in order[:remainder]:
        more[i] += 1
    copies = [rounds * n + m for n, m in zip(had, more, strict=True)]
    models = [{**e, "copies": n} for e, n in zip(entries, copies, strict=True) if n]
    return {**catalog, "models": models}


def between(low: float, high: float, count: int, *, is_whole: bool) -> list[float]:
    """Return `count` values that divide a range, continuous ones by ratios."""
    if is_whole:
        steps = {ceil(low + (high - low) * k / (count + 1)) for k in range(1, count + 1)}
        return sorted(float(step) for step in steps if low < step < high)
    return [low * (high / low) ** (k / (count + 1)) for k in range(1, count + 1)]
