"""The one serving loop: state, pure step, actions; the simulator and the engine drive it."""

from c2c.serving.batching import ACT_INTERRUPT, ACT_LOAD, ACT_RUN
from c2c.serving.fleet import AlphaSettings, Prepared, ServingSetup, SystemSpec, prepare
from c2c.serving.state import (
    COLD,
    FAIL_CONTEXT,
    FAIL_KV,
    FAIL_NONE,
    RECORD_DTYPE,
    SWITCH,
    WARM,
    Fleet,
    Rules,
    Serving,
    new_serving,
)
from c2c.serving.step import on_arrival, on_ready, on_step_end

__all__ = [
    "ACT_INTERRUPT",
    "ACT_LOAD",
    "ACT_RUN",
    "COLD",
    "FAIL_CONTEXT",
    "FAIL_KV",
    "FAIL_NONE",
    "RECORD_DTYPE",
    "SWITCH",
    "WARM",
    "AlphaSettings",
    "Fleet",
    "Prepared",
    "Rules",
    "Serving",
    "ServingSetup",
    "SystemSpec",
    "new_serving",
    "on_arrival",
    "on_ready",
    "on_step_end",
    "prepare",
]
