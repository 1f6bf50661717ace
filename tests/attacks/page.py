"""The tables of docs/evidence/attacks.md: `python -m tests.attacks.page` writes them anew."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from tests.attacks.api import ADDING, API, SLOW
from tests.attacks.files import CHECKPOINTS, TRACES
from tests.attacks.table import PAGE, Attack, lines

_TABLES: Final[Mapping[str, Sequence[Attack]]] = {
    "api": API, "slow": SLOW, "adding": ADDING, "traces": TRACES, "checkpoints": CHECKPOINTS,
}  # fmt: skip


def page(text: str) -> str:
    """Return the page with today's tables, each after its mark."""
    for name, attacks in _TABLES.items():
        rows = "\n".join(["| attack | what comes back |", "| --- | --- |", *lines(attacks)])
        table = re.compile(rf"({re.escape(f'<!-- {name} -->')}\n\n).*?(?=\n\n|\Z)", re.DOTALL)
        text, found = table.subn(lambda at, rows=rows: at[1] + rows, text)
        assert found == 1, f"the page has no table {name}"
    return text.rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
