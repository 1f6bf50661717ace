"""Answer of a capacity search."""

from __future__ import annotations

from typing import Any

from c2c.config import RunSetup
from c2c.metrics import BINDS
from experiments.answers.capacity import Capacity
from experiments.answers.quantity import override_of

__all__ = ["answer_line", "answer_of", "caution"]

SHORT_S = 60.0  # shorter workloads do not show a queue that begins to grow


def answer_of(capacity: Capacity, setup: RunSetup) -> dict[str, Any]:
    """Return the answer as plain data, including its line."""
    middle, quantity = capacity.interval, capacity.quantity
    return {
        "answer": answer_line(capacity, setup),
        "of": quantity.name,
        "unit": quantity.unit,
        "mean": middle and middle.mean,
        "half_width_95": middle and middle.half,
        "every_seed": capacity.sure,
        "setting": _setting(capacity, setup) or None,
        "binds_beyond": capacity.binds,
        "note": caution(capacity, setup) or None,
        "seeds": [
            {"seed": seed, "met": b.met, "missed": b.missed}
            for seed, b in zip(capacity.seeds, capacity.brackets, strict=True)
        ],
        "runs": len(capacity.tried),
    }


def answer_line(capacity: Capacity, setup: RunSetup) -> str:
    """Return the answer in one line."""
    serving, quantity = setup.serving, capacity.quantity
    chips = serving.fleet_name
    if quantity.name == "superchips":  # which is the answer
        chips = "the chips of fleet.parts" if serving.beside else chips.partition(" x ")[2]
    fleet = f"{serving.system.name} on {chips}"
    share = f"{100 * setup.settings['slo']['attainment']:g} % of the requests on target"
    if not capacity.met:
        return f"answer: none. {fleet}, does not reach {share} {_looked(capacity)}"
    if capacity.sure is None:
        return f"answer: none. {fleet}, does not reach {share} with some seeds"
    if capacity.is_open:
        return f"answer: no limit found. {fleet}, has {share} {_looked(capacity)}"
    how = "at most" if quantity.more_is_harder else "at least"
    line = f"answer: {how} {_value(capacity)} for {share}: {fleet}"
    if setting := _setting(capacity, setup):
        line += f" ({setting})"
    if (binds := capacity.binds) is not None:
        beyond = "beyond that" if quantity.more_is_harder else "with less"
        line += f"; bottleneck {beyond}: {BINDS[binds]}"
    return line


def caution(capacity: Capacity, setup: RunSetup) -> str:
    """Return a note about a too short workload, or ""."""
    middle = capacity.interval
    if capacity.quantity.name != "rate" or middle is None:
        return ""
    lasts_s = float(setup.workload.description["requests"]) / middle.mean
    if lasts_s >= SHORT_S:
        return ""
    return (
        f"note: at that rate the workload lasts only {lasts_s:.3g} s, too short to show a growing "
        "queue; use more requests"
    )


def _setting(capacity: Capacity, setup: RunSetup) -> str:
    value = capacity.sure if capacity.quantity.is_whole else capacity.interval
    if value is None:
        return ""
    number = value if isinstance(value, float) else value.mean
    return override_of(setup.settings, capacity.quantity, number)


def _value(capacity: Capacity) -> str:
    quantity, middle = capacity.quantity, capacity.interval
    assert middle is not None
    if middle.half is None:
        return f"{_n(middle.mean)} {quantity.unit} (one seed, no interval)"
    if not middle.half:
        return f"{_n(middle.mean)} {quantity.unit} (each of {len(capacity.seeds)} seeds)"
    low, high = middle.mean - middle.half, middle.mean + middle.half
    spread = f"{_n(low)} to {_n(high)} with 95 % confidence, {len(capacity.seeds)} seeds"
    if not quantity.is_whole:
        return f"{_n(middle.mean)} {quantity.unit} ({spread})"
    assert capacity.sure is not None
    return f"{_n(capacity.sure)} {quantity.unit} (every seed; mean {_n(middle.mean)}, {spread})"


def _looked(capacity: Capacity) -> str:
    quantity = capacity.quantity
    is_down = quantity.more_is_harder != bool(capacity.met)
    edge = quantity.lowest if is_down else quantity.highest
    return f"{'down' if is_down else 'up'} to {_n(edge)} {quantity.unit}"


def _n(value: float) -> str:
    return f"{float(f'{value:.3g}'):,g}"
