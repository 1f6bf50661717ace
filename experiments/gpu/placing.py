"""Memory of a run's weights: the host's, until reading it costs two processes in a row."""

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
    """The switch for weights in device memory, which all sections of a run share.

    With "auto" it is thrown by cases that read host memory and cost `MOST_LOST` processes, none
    between them having passed: what else such cases measure is then measured without the link.
    """

    wanted: Wanted = "auto"
    why: str = ""
    _lost: int = 0

    @property
    def weights(self) -> Place:
        """Their present place."""
        return "device" if self.wanted == "device" or self.why else "host"

    def of(self, case: Case) -> Case | None:
        """Return the case as it can run now, None if it is about host memory alone."""
        if self.weights == "host" or not case.host or "w_in" in case.spec:
            return case
        if case.host == "only":
            return None
        return replace(case, spec={**case.spec, "w_in": "device"})

    def due(self, case: Case, finished: Collection[str]) -> Case | None:
        """Return the case as it can run now, None if it cannot or has its result."""
        found = self.of(case)
        return None if found is None or (found.key in finished and not found.always) else found

    def count(self, case: Case, outcome: Outcome) -> bool:
        """Take note of how a case went; return whether that threw the switch."""
        if not case.host or self.weights == "device" or outcome.status == "skipped":
            return False
        self._lost = self._lost + 1 if outcome.lost else 0
        if self.wanted == "auto" and self._lost >= MOST_LOST:
            self.why = f"{MOST_LOST} cases in a row ended their process: {outcome.reason}"
            return True
        return False
