"""Attention of some sequences on another device: the slot between a sender and a receiver."""

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

__all__ = [
    "Receiver",
    "Sender",
    "Slot",
    "SlotError",
    "SlotShape",
    "Status",
    "Task",
    "TaskFailed",
]
