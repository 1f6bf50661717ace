"""Memory of a run's weights: host memory, until reading it costs two processes in a row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from experiments.gpu.cases import Case, Place
from experiments.gpu.child import Outcome

Wanted = Literal["auto", "host", "device"]

MOST_LOST = 2


@dataclass(slots=True)
class Placing:
    """Memory of the weights, shared by all sections of a run.

    With "auto" weights move to device memory once `MOST_LOST` cases in a row that read host memory
    cost their process. Later cases measure the rest without the link. `why` is the reason of the
    move, "" before it.
    """

    wanted: Wanted = "auto"
    why: str = ""
    _lost: int = 0

    @property
    def weights(self) -> Place:
        """Memory that holds the weights now."""
        return "device" if self.wanted == "device" or self.why else "host"

    def of(self, case: Case) -> Case | None:
        """Return the case as it can run now, None if it needs host memory that is not read now."""
        if self.weights == "host" or not case.host or "w_in" in case.spec:
            return case
        if case.host == "only":
            return None
        return replace(case, spec={**case.spec, "w_in": "device"})

    def due(self, case: Case, finished: Collection[str]) -> Case | None:
        """Return the case as it can run now, None if it cannot run or has its result."""
        found = self.of(case)
        return None if found is None or (found.key in finished and not found.always) else found

    def count(self, case: Case, outcome: Outcome) -> bool:
        """Record the outcome of a case; return whether it moved the weights."""
        if not case.host or self.weights == "device" or outcome.status == "skipped":
            return False
        self._lost = self._lost + 1 if outcome.lost else 0
        if self.wanted == "auto" and self._lost >= MOST_LOST:
            self.why = f"{MOST_LOST} cases in a row ended their process: {outcome.reason}"
            return True
        return False
