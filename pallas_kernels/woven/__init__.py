"""Attention of some sequences on another device."""

from typing import TYPE_CHECKING, Any

from pallas_kernels.woven.slot import (
    Receiver,
    Sender,
    Slot,
    SlotError,
    SlotShape,
    Status,
    Task,
    TaskFailed,
)

if TYPE_CHECKING:
    from pallas_kernels.woven.api import Polled, Received, Sent, poll, receive, send
    from pallas_kernels.woven.config import SendConfig
    from pallas_kernels.woven.exchange import Exchange, Shared

_LAZY = {
    **dict.fromkeys(("Polled", "Received", "Sent", "poll", "receive", "send"), "api"),
    "SendConfig": "config",
    **dict.fromkeys(("Exchange", "Shared"), "exchange"),
}

__all__ = [
    "Exchange",
    "Polled",
    "Received",
    "Receiver",
    "SendConfig",
    "Sender",
    "Sent",
    "Shared",
    "Slot",
    "SlotError",
    "SlotShape",
    "Status",
    "Task",
    "TaskFailed",
    "poll",
    "receive",
    "send",
]


def __getattr__(name: str) -> Any:
    """The kernels need jax, the slot does not."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
