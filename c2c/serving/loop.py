"""The serving loop as a pure step over a small port, the form a live engine implements.

`step` is the same code that the compiled simulator runs: only the packing of events and actions
is added here. A test holds both to the same records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from c2c.serving.batching import ACT_INTERRUPT, ACT_LOAD
from c2c.serving.state import Fleet, Rules, Serving
from c2c.serving.step import on_arrival, on_ready, on_step_end

__all__ = [
    "Action",
    "Arrival",
    "Backend",
    "Event",
    "Interrupt",
    "Load",
    "Ready",
    "RunSteps",
    "StepEnd",
    "run",
    "step",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request has come in."""

    at_s: float
    request_id: int
    model: int  # position in Fleet.deployment
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The model that was being loaded on an instance can take its first step."""

    at_s: float
    instance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """An instance did `steps` of the steps it was told to run; what was measured meanwhile."""

    at_s: float
    instance: int
    steps: int
    latency_s: float  # seconds a step
    hbm_utilisation: float  # of the slice
    c2c_utilisation: float  # of the chip's link, all tenants
    available_gbps: float  # link rate the instance can expect next
    link_bytes: float
    hbm_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Activate a model on an instance (evicting what it holds)."""

    instance: int
    model: int
    is_cold: bool  # the weights are not in host memory yet


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSteps:
    """Run one mixed step, or up to `steps` equal decode steps.

    `requests_prefill` holds (request id, first prompt token, tokens) of each prompt in the step,
    `requests_decode` the request ids that decode one token.
    """

    instance: int
    model: int
    steps: int
    alpha_index: int
    part: int  # a step with prompt tokens may be run in `parts` equal parts (layers)
    parts: int
    requests_prefill: tuple[tuple[int, int, int], ...]
    requests_decode: tuple[int, ...]
    prefill_tokens: int
    prefill_pairs: float
    prefill_kv_tokens: int
    decode_kv_tokens: int
    kv_growth: int
    logit_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """End the run of decode steps at the next step boundary: a request waits to join."""

    instance: int


Event = Arrival | Ready | StepEnd
Action = Load | RunSteps | Interrupt


class Backend(Protocol):
    """The world as the serving loop sees it: virtual in `c2c.simulator`, real in an engine."""

    def submit(self, at_s: float, actions: Sequence[Action]) -> None:
        """Carry out actions that were decided at `at_s`."""
        ...

    def next_event(self) -> Event | None:
        """Return the next event in time order; None ends the run."""
        ...


def _copy(state: Serving) -> Serving:
    return Serving(*(field.copy() for field in state))


def step(
    fleet: Fleet, rules: Rules, state: Serving, event: Event, *, donate: bool = False
) -> tuple[Serving, tuple[Action, ...]]:
    """Return the state after an event and the actions that follow from it.

    Args:
      donate: let the step reuse the arrays of `state` instead of copying them; the caller must
        not use `state` again.
    """
    s = state if donate else _copy(state)
    if isinstance(event, Arrival):
        on_arrival(
            fleet,
            rules,
            s,
            event.at_s,
            event.request_id,
            event.model,
            event.prompt_tokens,
            event.output_tokens,
        )
    elif isinstance(event, Ready):
        on_ready(fleet, rules, s, event.instance, event.at_s)
    else:
        inst = s.instance[event.instance]
        inst.ran_steps = event.steps
        inst.ran_latency_s = event.latency_s
        inst.ran_hbm = event.hbm_utilisation
        inst.ran_c2c = event.c2c_utilisation
        inst.available_gbps = event.available_gbps
        inst.ran_link_bytes = event.link_bytes
        inst.ran_hbm_bytes = event.hbm_bytes
        on_step_end(fleet, rules, s, event.instance, event.at_s)
    actions = tuple(_action(s, int(c), int(i)) for c, i in s.actions[: s.count[0].actions])
    s.count[0].actions = 0
    return s, actions


def _action(s: Serving, code: int, i: int) -> Action:
    inst = s.instance[i]
    if code == ACT_INTERRUPT:
        return Interrupt(instance=i)
    if code == ACT_LOAD:
        return Load(instance=i, model=int(inst.model), is_cold=bool(inst.cold))
    prefills = [s.request[k] for k in s.prefilling[i, : inst.n_prefill]]
    return RunSteps(
        instance=i,
        model=int(inst.model),
        steps=int(inst.plan_steps),
        alpha_index=int(inst.plan_alpha),
        part=int(inst.plan_part),
        parts=int(inst.plan_parts),
        requests_prefill=tuple(
            (int(r.id), int(r.prefilled), int(r.step_tokens)) for r in prefills if r.step_tokens
        ),
        requests_decode=tuple(int(s.request[k].id) for k in s.decoding[i, : inst.n_decode]),
        prefill_tokens=int(inst.plan_prefill),
        prefill_pairs=float(inst.plan_pairs),
        prefill_kv_tokens=int(inst.plan_prefill_kv),
        decode_kv_tokens=int(inst.plan_decode_kv),
        kv_growth=int(inst.plan_growth),
        logit_rows=int(inst.plan_rows),
    )


def run(fleet: Fleet, rules: Rules, state: Serving, backend: Backend) -> Serving:
    """Serve until the backend has no more events.

    `state` is donated. It must have request slots and record space for the whole run; the
    streaming driver is `c2c.simulator.Simulation`.
    """
    while (event := backend.next_event()) is not None:
        state, actions = step(fleet, rules, state, event, donate=True)
        backend.submit(event.at_s, actions)
    return state
