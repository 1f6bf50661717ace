"""docs/evidence/attacks.md: its tables are those that the tests hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PAGE", "Attack", "holds", "lines"]

PAGE = Path(__file__).parents[2] / "docs/evidence/attacks.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """An attack and its outcome.

    Attributes:
      name: in words.
      make: what is sent or written.
      back: what came back; "..." for what differs from one machine to another.
      more: settings of the attack.
    """

    name: str
    make: Callable[..., Any]
    back: str
    more: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the name, as pytest shows it."""
        return self.name


def lines(attacks: Iterable[Attack]) -> Iterator[str]:
    """Yield the rows of a table, in Markdown."""
    for attack in attacks:
        back = attack.back.replace("|", "\\|").replace("<", "&lt;")
        yield f"| {attack.name} | {back} |"


def holds(said: str, back: str) -> bool:
    """Return whether an answer is the one of a table."""
    return re.fullmatch(".*".join(map(re.escape, back.split("..."))), said) is not None
