"""Worker processes of a hot model and a cold one.

python -m c2c.systems.weaver.live.worker <socket> <place> <generation>
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from msgspec import structs

from c2c.engine import messages as say
from c2c.engine.residents import Residents
from c2c.engine.worker import main
from c2c.systems.weaver.live.links import Link, LinkLost, SlotInbox, SlotLink, slot_shape
from c2c.systems.weaver.live.receiver import KvHost
from c2c.systems.weaver.live.woven import Woven
from c2c.transformer import Lease, Model, Runner, Step, pieces
from c2c.transformer.executables import Executables
from c2c.transformer.running.executor import GaveWay
from pallas_kernels.woven import Slot, SlotShape

__all__ = ["Weavers"]

_log = logging.getLogger("c2c.engine")
_LIMIT_S = 30.0  # in which the receiver answers; a worker that hangs is killed before
_AGAIN_S = 0.2  # between two attempts to connect
_IDLE_S = 2e-4  # between two polls of an idle receiver


# The hot model's worker opens a slot and listens; the cold one's connects and answers tasks after
# each layer of its own steps and while it is idle. Without a connection all sequences stay at home.
class Weavers(Residents):
    """Instances of one of two models, and the link."""

    def __init__(
        self, setup: say.Setup, opening: Callable[[say.Opening], None] = lambda _: None
    ) -> None:
        """Open the models, and compile the link's needs."""
        self._hot, self._folder = setup.layout["hot"], Path(setup.folder)
        self._reserve = int(float(setup.layout["reserve"]) * setup.superblocks)
        self._submits: dict[int, say.Submit] = {}
        self._fallen: set[int] = set()  # requests to compute again before they decode
        self._listening: _Listening | None = None
        self._host: KvHost | None = None
        self._hot_model: Model | None = None
        self._looked_s = 0.0
        super().__init__(setup, opening)

    def _loaded(self, name: str, executables: Executables | None) -> Model:
        model = super()._loaded(name, executables)
        if name == self._hot:
            self._hot_model = model
        return model

    def _compiled(self, model: Model, done: Callable[[], None]) -> Model:
        compiled = super()._compiled(model, done)
        if model is self._hot_model and model.executables is not None:
            self._host_of(model, _Nobody()).ready()
        return compiled

    def _made(self, model: Model, lease: Lease | None = None) -> Runner:
        here = model.executor(self._pool, lease)
        if model is not self._hot_model:
            here.poll = self._poll
            return Runner(here, self._shapes)
        return Runner(Woven(here, _Nobody(), self._shapes, ratio=0.0), self._shapes)

    def _host_of(self, model: Model, inbox: Any) -> KvHost:
        return KvHost(
            self._pool, model.spec, inbox, self._shapes, reserve=self._reserve,
            executables=self._executables,
        )  # fmt: skip

    def load(self, load: say.Load) -> None:
        """Make a model runnable; the hot one begins to listen."""
        super().load(load)
        if load.model == self._hot and self._listening is None:
            self._listening = _Listening(self._folder, self._shape)

    @property
    def _shape(self) -> SlotShape:
        hot = self._open(self._hot)
        return slot_shape(hot.spec, self._shapes, self._pool.dtype)

    def _submit(self, instance: int, submit: say.Submit) -> None:
        executor = self._runners[instance].executor
        if isinstance(executor, Woven):
            self._submits[submit.request] = submit
            executor.planned[submit.request] = submit.home > 0
        super()._submit(instance, submit)

    def _step(
        self, runner: Runner, run: say.Run, number: int, calls: Iterator[Step], ahead: Step | None,
        hits: list[tuple[int, int]],
    ) -> say.Stepped:  # fmt: skip
        woven = runner.executor
        if not isinstance(woven, Woven):
            return super()._step(runner, run, number, calls, ahead, hits)
        if self._listening is not None and not woven.away and (link := self._listening.taken()):
            woven.use(link)
        parts: list[say.Stepped] = []
        sent = woven.sent
        for step in calls:
            rest = deque(self._at_home(step))
            while rest:
                call = rest.popleft()
                try:
                    parts.append(super()._step(runner, run, number, iter([call]), None, hits))
                except GaveWay as gone:
                    rest.extendleft(reversed(self._again(runner, run.instance, call, gone)))
        for part in parts:
            for request, _, why in part.tokens:
                if why is not None:
                    self._submits.pop(request, None)
        return structs.replace(_joined(parts), tasks=woven.sent - sent)

    def _at_home(self, call: Step) -> list[Step]:
        lost = [request for request in call.decode if request in self._fallen]
        if not lost:
            return [call]
        decodes = tuple(request for request in call.decode if request not in lost)
        rest = [Step(fill=call.fill, decode=decodes)] if call.fill or decodes else []
        return [*self._filled(lost), *rest]

    def _again(self, runner: Runner, instance: int, call: Step, gone: GaveWay) -> list[Step]:
        for request in gone.requests:
            rest, before = runner.preempt(request), self._submits[request]
            new = before.new - (rest.drawn - before.drawn)
            self._fallen.add(request)
            submit = structs.replace(
                before, ids=rest.ids, drawn=rest.drawn, new=new, home=0, prompt_scores=None
            )
            self._submit(instance, submit)
        return self._at_home(call)

    def _filled(self, requests: Sequence[int]) -> Iterator[Step]:
        for request in requests:
            self._fallen.discard(request)
            for tokens in pieces(len(self._submits[request].ids), self._shapes.budgets):
                yield Step(fill=(request, tokens))

    def _poll(self) -> bool:
        if self._host is not None and not self._host.is_over:
            return self._host.poll()
        self._host = None
        now_s = time.monotonic()
        if now_s - self._looked_s < _AGAIN_S or self._hot not in self._models:
            return False
        self._looked_s = now_s
        try:
            control = Client(str(self._folder / _SOCKET), "AF_UNIX")
        except OSError:  # nobody listens yet
            return False
        slot = Slot.open(control.recv(), self._shape)
        self._host = self._host_of(self._models[self._hot], SlotInbox(slot, control, _LIMIT_S))
        _log.info("sequences of %s may have their keys and values here", self._hot)
        return True

    @property
    def is_changing(self) -> bool:
        """True in the cold model's worker, which polls when idle."""
        return any(name != self._hot for name in self._models_of.values())

    def advance(self) -> say.Relaid | None:
        """Poll; return None."""
        if self.is_changing and not self._poll():
            time.sleep(_IDLE_S)
        return None


_SOCKET = "woven.socket"


class _Listening:
    """The hot side's socket, for the cold side's connections."""

    def __init__(self, folder: Path, shape: SlotShape) -> None:
        self._folder, self._shape, self._links = folder, shape, deque[Link]()
        path = folder / _SOCKET
        path.unlink(missing_ok=True)  # of a process that has ended
        self._listener = Listener(str(path), "AF_UNIX")
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        for number in range(1 << 30):
            control: Connection = self._listener.accept()
            path = self._folder / f"woven-{id(self)}-{number}.slot"
            path.unlink(missing_ok=True)
            slot = Slot.create(path, self._shape)
            control.send(str(path))
            self._links.append(SlotLink(slot, control, self._shape, limit_s=_LIMIT_S))

    def taken(self) -> Link | None:
        return self._links.pop() if self._links else None


class _Nobody:
    """Both ends of a link that nobody is at."""

    def next(self) -> None:
        return None

    def bring(self, *_: Any) -> bool:
        return False

    def give(self, *_: Any) -> None:
        pass

    def send(self, *_: Any) -> Any:
        raise LinkLost("nobody is connected")

    table = wait = close = send


def _joined(parts: Sequence[say.Stepped]) -> say.Stepped:
    def every(name: str) -> tuple[Any, ...]:
        return tuple(one for part in parts for one in getattr(part, name))

    return structs.replace(
        parts[-1], tokens=every("tokens"), calls=every("calls"), scores=every("scores"),
        prompts=every("prompts"), found=parts[-1].found,
        **{name: sum(getattr(part, name) for part in parts)
           for name in ("seconds", "host_s", "kv_tokens", "compiled")},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Weavers))
