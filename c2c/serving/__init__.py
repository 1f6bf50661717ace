"""The one serving loop: state, pure step, actions; the simulator and the engine drive it."""

from c2c.serving.actions import ACT_INTERRUPT, ACT_LOAD, ACT_RUN, ACT_UNLOAD
from c2c.serving.prepare import Prepared, ServingSetup, SystemSpec, activation_bytes, prepare
from c2c.serving.state import (
    COLD,
    FAIL_CANCELLED,
    FAIL_CONTEXT,
    FAIL_DEADLINE,
    FAIL_DEVICE,
    FAIL_KV,
    FAIL_NONE,
    RECORD_DTYPE,
    SWITCH,
    WARM,
    Fleet,
    Rules,
    Serving,
)
from c2c.serving.step import on_arrival, on_ready, on_step_end, start_asked

__all__ = [
    "ACT_INTERRUPT",
    "ACT_LOAD",
    "ACT_RUN",
    "ACT_UNLOAD",
    "COLD",
    "FAIL_CANCELLED",
    "FAIL_CONTEXT",
    "FAIL_DEADLINE",
    "FAIL_DEVICE",
    "FAIL_KV",
    "FAIL_NONE",
    "RECORD_DTYPE",
    "SWITCH",
    "WARM",
    "Fleet",
    "Prepared",
    "Rules",
    "Serving",
    "ServingSetup",
    "SystemSpec",
    "activation_bytes",
    "on_arrival",
    "on_ready",
    "on_step_end",
    "prepare",
    "start_asked",
]
