"""Worker slots: process, held state, current work."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from c2c.engine import messages
from c2c.engine.devices import Device
from c2c.engine.frames import Connection
from c2c.engine.ledger import Ledger
from c2c.engine.messages import Fill, Run, Stepped, Submit
from c2c.engine.record import StepRow
from c2c.serving.tables.port import Load, Relayout, RunSteps

__all__ = [
    "RELAID",
    "Doing",
    "Place",
    "kind_of",
    "load_of",
    "load_row",
    "note_instances",
    "note_relaid",
    "relayout_of",
    "requests_in",
    "run_of",
]


_PROMPT: Final = 64  # prompt tokens by which kinds of steps differ
RELAID: Final = ("changes", "pieces", "weight_bytes", "kv_bytes")  # totals of `Place.relaid`


@dataclass(slots=True)
class Doing:
    """A device's current action and progress."""

    plan: int
    action: Load | RunSteps
    begun_s: float
    sent_s: float = 0.0
    done: int = 0  # steps
    seconds: float = 0.0  # of these steps
    moved: tuple[float, float, float] | None = (
        None  # bytes: see `c2c.serving.tables.costs.step_bytes`
    )
    is_cold: bool = False  # True if it waited for weights
    is_interrupted: bool = False  # True if it must end early, even after a restart
    again: int = 0  # prompt tokens that are recomputed
    alone: list[int] | None = None  # requests left to compute one by one; None: all at once
    kept: list[Stepped] = field(default_factory=list)  # reports of single requests, until all end
    finished: dict[int, str] = field(default_factory=dict)  # ended request: reason


@dataclass(slots=True)
class Place:
    """Slot of a worker: a device and its current process.

    Attributes:
      device: index in the fleet.
      gpus: bound GPUs or MIG instances.
      generation: process number, increased at each start.
      link: connection to a ready process.
      is_hung: whether killed for silence.
      in_vain: processes in a row that ended without work.
      ended: processes in a row killed from outside without work.
      instances: instances on the device, with model names.
      moved: requests with new homes after a change of variant.
      is_waiting: whether work waits for weights.
      is_quarantined: whether no process is started.
    """

    device: int
    gpus: tuple[Device, ...] = ()
    generation: int = 0
    process: subprocess.Popen[bytes] | None = None
    link: Connection | None = None
    was_ready: bool = False
    has_worked: bool = False
    is_hung: bool = False
    is_over: bool = False
    in_vain: int = 0
    ended: int = 0
    heard_s: float = 0.0
    instances: dict[int, str] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    doing: Doing | None = None
    variant: int = 0
    moved: tuple[tuple[int, int], ...] = ()
    relayout: Relayout | None = None
    relaid: Counter[str] = field(default_factory=Counter)
    longest_piece_s: float = 0.0
    is_waiting: bool = False
    is_quarantined: bool = False
    compiled: int = 0
    restarts: int = 0


def requests_in(action: Load | RunSteps) -> Iterator[int]:
    """Yield a step's requests."""
    if isinstance(action, RunSteps):
        yield from (request for request, _, _ in action.prefills)
        yield from action.decodes


def kind_of(doing: Doing) -> Hashable:
    """Return the key of steps of similar duration."""
    action = doing.action
    assert isinstance(action, RunSteps)
    prompt = sum(tokens for _, _, tokens in action.prefills)
    return action.model, -(-prompt // _PROMPT), len(action.decodes)


def note_instances(places: Sequence[Place], instances: Any, names: Sequence[str]) -> None:
    """Record a system's first instances in their slots."""
    for i, instance in enumerate(instances):
        if instance.model >= 0:
            places[int(instance.on_device)].instances[i] = names[int(instance.model)]


def load_of(place: Place, plan: int, instance: int, model: str) -> messages.Load:
    """Return the frame that opens an instance."""
    return messages.Load(
        plan=plan, instance=instance, model=model, variant=place.variant, moved=place.moved
    )


def load_row(
    place: Place, doing: Doing, frame: messages.Loaded, model: str, sent_s: float, heard_s: float
) -> StepRow:
    """Return a load's record."""
    return StepRow(
        plan=frame.plan, number=-1, device=place.device, model=model, chunk=0, rows=0, calls=[],
        prompt_tokens=0, decodes=0, kv_tokens=0, found=0, seconds=frame.seconds, host_s=0.0,
        begun_s=doing.begun_s, sent_s=sent_s, heard_s=heard_s, outside_s=0.0, is_turn=False,
        is_cold=doing.is_cold, again=0,
    )  # fmt: skip


def relayout_of(instance: int, relayout: Relayout) -> messages.Relayout:
    """Return the frame that changes an instance's variant."""
    return messages.Relayout(instance=instance, variant=relayout.version, moved=relayout.kv_homes)


def note_relaid(place: Place, frame: messages.Relaid) -> None:
    """Count a finished change of a slot's variant."""
    place.compiled += frame.compiled
    place.relaid.update(changes=1, **{name: getattr(frame, name) for name in RELAID[1:]})
    place.longest_piece_s = max(place.longest_piece_s, frame.longest_s)


def run_of(place: Place, doing: Doing, ledger: Ledger, at_s: float) -> tuple[Run | None, list[int]]:
    """Return a plan's frame, and requests to free before.

    Requests that the process lacks are recomputed from delivered tokens, with equal draws; after a
    lost step one at a time. None: all have ended.
    """
    action = doing.action
    assert isinstance(action, RunSteps)
    requests = requests_in(action) if doing.alone is None else doing.alone
    candidates = [request for request in requests if ledger.get(request) is not None]
    if doing.alone is not None:
        doing.alone, candidates = candidates, candidates[:1]
    homes = dict(zip(requests_in(action), action.kv_homes, strict=False))
    submits, fills, decodes, freed = [], [], [], []
    for request, first, tokens in action.prefills:
        if request not in candidates:
            continue
        if first == 0 and request in place.held:
            freed.append(request)
            place.held.discard(request)
        if request in place.held:
            fills.append(Fill(request=request, tokens=tokens))
        else:
            submits.append(_submit(ledger, request, homes))
            fills.append(Fill(request=request, tokens=first + tokens))
    for request in action.decodes:
        if request not in candidates:
            continue
        if request in place.held:
            decodes.append(request)
        else:
            submits.append(_submit(ledger, request, homes))
            fills.append(Fill(request=request, tokens=len(submits[-1].ids)))
    for submit in submits:
        ledger.begin(submit.request, at_s)
        place.held.add(submit.request)
    if not fills and not decodes:
        return None, freed
    run = Run(
        plan=doing.plan,
        instance=action.instance,
        submits=tuple(submits),
        fills=tuple(fills),
        decodes=tuple(decodes),
        steps=1 if doing.is_interrupted or doing.alone is not None else int(action.plan.steps),
    )
    return run, freed


def _submit(ledger: Ledger, request: int, homes: Mapping[int, int]) -> Submit:
    entry = ledger.get(request)
    assert entry is not None  # the caller checked
    ask = entry.ask
    return Submit(
        request=request,
        ids=(*ask.ids, *entry.delivered),
        new=entry.left,
        drawn=len(entry.delivered),
        stop=ask.stop,
        least=ask.least,
        scores=ask.scores,
        prompt_scores=None if entry.delivered else ask.prompt_scores,
        embeds=ask.embeds,
        grammar=ask.grammar,
        home=homes.get(request, 0),
        blocks=entry.blocks,
        **ask.sampling(),
    )
