"""Admin commands for weights (load, pin, unpin, unload), and their pending answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from c2c.engine.store import Store
from c2c.serving.pools import entry_of
from c2c.serving.port import (
    DeviceLost,
    DropWeights,
    Event,
    KeepWeights,
    ReleaseWeights,
    WeightsHere,
)
from c2c.serving.state import ABSENT

__all__ = ["Keeper"]

type What = Literal["load", "unload", "pin", "unpin"]
type Answer = Callable[[str], None]


class _Wish(NamedTuple):
    model: str
    what: What
    answer: Answer


class Keeper:
    """Turns admin commands into events of the loop, and their outcomes into answers.

    Attributes:
      pinned: models whose weights are pinned.
    """

    def __init__(
        self,
        models: dict[str, int],
        store: Store,
        *,
        put: Callable[[Event], None],
        now_s: Callable[[], float],
    ) -> None:
        """Create it from parts of the engine."""
        self._models, self._store = models, store
        self._put, self._now_s = put, now_s
        self.pinned: set[str] = set()
        self._decided: dict[int, list[_Wish]] = {}  # by event that the loop has not taken yet
        self._loading: dict[str, list[tuple[_Wish, bool]]] = {}  # and whether its pin ends then

    def manage(self, name: str, what: What, answer: Answer) -> None:
        """Start an admin command; `answer` gets the reason of a refusal, or ""."""
        wish, model, at_s = _Wish(name, what, answer), self._models[name], self._now_s()
        if what == "unload" and name in self.pinned:
            answer("it is pinned")
        elif what == "unload":
            self._begin(DropWeights(at_s=at_s, model=model), wish)
        elif name in self.pinned and name in self._loading:
            if what == "unpin":
                answer("it is being loaded")
            else:
                self._loading[name].append((wish, False))
        elif what == "unpin" and name in self.pinned:
            self.pinned.discard(name)
            self._begin(ReleaseWeights(at_s=at_s, model=model), wish)
        elif what == "unpin" or name in self.pinned:
            answer("")  # already done
        else:
            self._begin(KeepWeights(at_s=at_s, model=model), wish)

    def _begin(self, event: Event, wish: _Wish) -> None:
        self._decided.setdefault(id(event), []).append(wish)
        self._put(event)

    def waits_for(self, model: str) -> bool:
        """Return whether an admin command needs a model's weights in memory."""
        return model in self._loading or model in self.pinned

    def taken(self, event: Event, fleet: Any, state: Any) -> None:
        """Continue commands after the loop took an event and its actions were executed."""
        if isinstance(event, DeviceLost):  # loads that this device waited for were stopped
            for name in self._loading:
                self._store.fetch(name)
        for wish in self._decided.pop(id(event), ()):
            entry = state.hold[entry_of(fleet, self._models[wish.model], 0)]
            if isinstance(event, ReleaseWeights):
                wish.answer("")
            elif isinstance(event, DropWeights):
                wish.answer("" if entry.state == ABSENT else "it has open requests")
            elif entry.state == ABSENT:
                wish.answer("memory has no room: all other weights are in use or pinned")
            else:
                self._keep(wish)

    def _keep(self, wish: _Wish) -> None:
        is_brief = wish.what == "load" or wish.model in self.pinned  # by a command just before
        if wish.what == "pin":
            self.pinned.add(wish.model)
        self._loading.setdefault(wish.model, []).append((wish, is_brief))
        if wish.model in self._store.here:
            self.fetched(wish.model, "")
        else:
            self._store.fetch(wish.model)

    def fetched(self, model: str, failed: str) -> None:
        """Answer the commands that wait for a load; `failed`: reason of its failure, or ""."""
        wishes = self._loading.pop(model, [])
        if wishes and not failed:
            self._put(WeightsHere(at_s=self._now_s(), model=self._models[model]))
        for wish, is_brief in wishes:
            if is_brief or (failed and model in self.pinned):
                self._put(ReleaseWeights(at_s=self._now_s(), model=self._models[model]))
            if failed and not is_brief:
                self.pinned.discard(model)
            wish.answer(failed)
