"""Controls of the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from c2c.config import choices
from c2c.hardware import load_platform, platforms

__all__ = ["controls"]


@dataclass(frozen=True, slots=True)
class Slider:
    """A setting's slider, logarithmic; `empty`: text without a value."""

    setting: str
    label: str
    low: float
    high: float
    value: float | None
    is_whole: bool = False
    empty: str = ""


_RATE: Final = Slider("workload.rate_rps", "requests a second", 0.1, 100.0, 2.0)
# File of `conf/workload` -> the slider of its load.
_LOADS: Final[Mapping[str, Slider]] = {
    "poisson": _RATE,
    "conversations": _RATE,
    "closed_loop": Slider("workload.concurrency", "clients", 1, 512, 16, is_whole=True),
    "agents": Slider("workload.agents", "agents", 1, 512, 16, is_whole=True),
    "file": Slider("workload.compression", "times the trace's rate", 0.1, 100.0, 1.0),
}
_OTHERS: Final = (
    Slider("slo.ttft_s", "TTFT target (s)", 0.05, 20.0, None, empty="the catalog's"),
    Slider("slo.tpot_s", "TPOT target (s)", 0.005, 1.0, None, empty="the catalog's"),
    Slider("superchips", "chips", 1, 16, 1, is_whole=True),
)


def controls(most: int) -> dict[str, Any]:
    """Return the page's controls, for at most so many requests."""
    counts = {
        name: Slider(f"workload.{'max_' * (name == 'file')}requests", "requests", min(50, most),
                     most, min(1000, most), is_whole=True)
        for name in _LOADS
    }  # fmt: skip
    return {
        "choices": {
            "hardware": list(platforms()), "catalog": choices("catalog"), "workload": list(_LOADS),
            "system": choices("system"),
        },
        "mig": {name: ["auto", *load_platform(name).layouts] for name in platforms()},
        "sliders": {
            name: [asdict(one) for one in (load, counts[name], *_OTHERS)]
            for name, load in _LOADS.items()
        },
        "start": {
            "hardware": "gh200", "mig": "4x24gb", "catalog": "dense6", "workload": "poisson",
            "systems": ["c2cserve_plus", "serverlessllm"],
        },
    }  # fmt: skip
