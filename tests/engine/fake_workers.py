"""A link to a worker that is not there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from c2c.engine import messages as say
from c2c.engine.frames import frames_in, packed

__all__ = ["FakeLink"]


@dataclass
class FakeLink:
    """A place's link: frames are kept for the worker."""

    frames: list[Any] = field(default_factory=list)

    def send(self, *frames: say.Frame) -> None:
        self.frames += frames_in(bytearray(packed(*frames)))
