"""The serving loop as a pure step over the port, the form that a live engine drives.

`step` is the same code that the compiled simulator runs: only the packing of events and actions is
added here. The contract suite holds both to the same records.
"""

from __future__ import annotations

from c2c.serving.actions import ACT_INTERRUPT, ACT_LOAD, ACT_UNLOAD
from c2c.serving.port import (
    Action,
    Arrival,
    Backend,
    Event,
    Interrupt,
    Load,
    Ready,
    RunSteps,
    Unload,
)
from c2c.serving.state import Fleet, Rules, Serving
from c2c.serving.step import on_arrival, on_ready, on_step_end, start_asked

__all__ = ["run", "step"]


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
    now_s = event.at_s
    if isinstance(event, Arrival):
        on_arrival(
            fleet,
            rules,
            s,
            now_s,
            event.request_id,
            event.model,
            event.prompt_tokens,
            event.output_tokens,
        )
    elif isinstance(event, Ready):
        on_ready(fleet, rules, s, event.device, now_s)
    else:
        s.report[event.device] = event.report
        on_step_end(fleet, rules, s, event.device, now_s)
    start_asked(fleet, rules, s, now_s)
    actions = tuple(_action(s, int(c), int(k)) for c, k in s.actions[: s.count[0].actions])
    s.count[0].actions = 0
    return s, actions


def _action(s: Serving, code: int, where: int) -> Action:
    if code == ACT_UNLOAD:
        return Unload(device=int(s.instance[where].on_device), instance=where)
    if code == ACT_INTERRUPT:
        return Interrupt(device=where)
    plan = s.plan[where].copy()
    i = int(plan.instance)
    inst = s.instance[i]
    if code == ACT_LOAD:
        return Load(device=where, instance=i, model=int(inst.model), is_cold=bool(inst.cold))
    prefills = [s.request[k] for k in s.prefilling[i, : inst.n_prefill]]
    return RunSteps(
        device=where,
        instance=i,
        model=int(inst.model),
        plan=plan,
        prefills=tuple(
            (int(r.id), int(r.prefilled), int(r.step_tokens)) for r in prefills if r.step_tokens
        ),
        decodes=tuple(int(s.request[k].id) for k in s.decoding[i, : inst.n_decode]),
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
