"""Roles of devices."""

from __future__ import annotations

from typing import Final

__all__ = ["DECODES", "EVERYTHING", "PROMPTS"]

EVERYTHING: Final = 0
PROMPTS: Final = 1  # what it has prefilled, others decode
DECODES: Final = 2  # what others have prefilled
