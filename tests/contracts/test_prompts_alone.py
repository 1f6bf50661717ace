"""Prompts in steps of their own: who is in a step, who waits for it, and who may leave then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from c2c.errors import BackendError
from c2c.policies import Fixed
from c2c.serving import FAIL_CANCELLED, FAIL_NONE, prepare
from c2c.serving.batches.schedulers.prompts_alone import PromptsAlone
from c2c.serving.loop import step
from c2c.serving.tables.port import Arrival, Cancelled, Event, Forget, RunSteps, StepEnd, new_report
from tests.contracts.systems import prepared
from tests.contracts.watching import Watch

CHUNK = 512


class Loop:
    """The loop of one model in HBM, held to its laws; `run` is the step under way."""

    def __init__(self) -> None:
        made = prepared("dedicated", "roomy").setup
        system = replace(made.system, batch=PromptsAlone(), chunk=Fixed(CHUNK))
        self.what = prepare(replace(made, deployments=made.deployments[:1], system=system))
        self.rules = self.what.new_rules()
        self.state = self.what.new_serving(rules=self.rules)
        self.watch = Watch(self.what, self.state)
        self.now_s, self.forgotten = 0.0, list[int]()
        self.run: RunSteps | None = None

    def take(self, event: Event) -> None:
        self.watch.event(event)
        self.state, actions = step(self.what.fleet, self.rules, self.state, event, donate=True)
        self.watch.actions(actions)
        self.watch.tables(self.rules, self.state)
        for action in actions:
            if isinstance(action, RunSteps):
                self.run = action
            elif isinstance(action, Forget):
                self.forgotten.append(action.request_id)

    def ask(self, request: int, prompt: int, output: int) -> None:
        self.take(Arrival(at_s=self.now_s, request_id=request, model=0, prompt_tokens=prompt,
                          max_output_tokens=output))  # fmt: skip

    def end(self) -> None:
        """End the run under way, a second a step."""
        assert self.run is not None
        run, self.run = self.run, None
        steps = int(run.plan.steps)
        self.now_s += steps
        report = new_report(steps=steps, latency_s=1.0, link_bytes=10.0 * steps,
                            hbm_bytes=20.0 * steps, available_gbps=1.0)  # fmt: skip
        self.take(StepEnd(at_s=self.now_s, device=run.device, report=report))

    def asked(self) -> tuple[list[tuple[int, int, int]], list[int]]:
        assert self.run is not None
        return list(self.run.prefills), list(self.run.decodes)


def waiting(output: int) -> Loop:
    """Return a loop whose first request waits for the first of two steps of the second's prompt."""
    loop = Loop()
    loop.ask(0, 100, output)
    assert loop.asked() == ([(0, 0, 100)], [])
    loop.ask(1, CHUNK + 9, 3)
    loop.end()
    assert loop.asked() == ([(1, 0, CHUNK)], [])
    return loop


@pytest.mark.parametrize("output", [2, 3, 9])
def test_decodes_wait_for_all_prompts_and_pay_for_none_of_their_steps(output: int) -> None:
    loop = waiting(output)
    loop.end()
    assert loop.asked() == ([(1, CHUNK, 9)], [])  # a prompt that was cut goes first
    loop.ask(2, 30, 1)
    loop.end()
    assert loop.asked() == ([(2, 0, 30)], [])
    assert loop.forgotten == []  # who waits has not come to its end
    loop.end()
    assert loop.asked() == ([], [0, 1])
    assert loop.run is not None
    assert loop.run.plan.steps == min(output - 1, 2)
    while loop.run is not None:
        loop.end()
    records = loop.watch.end(loop.state)
    assert records.failure.tolist() == [FAIL_NONE] * 3
    # Ten bytes a step, whose requests share them: four steps with one prompt, then decodes.
    assert records.link_bytes.sum() == pytest.approx(10.0 * (loop.now_s))
    assert records.hbm_bytes[2] == pytest.approx(20.0)
    assert records.first_token_s.tolist() == [1.0, 3.0, 4.0]


def test_who_waits_for_a_step_leaves_at_once_and_who_is_in_it_with_its_end() -> None:
    loop = waiting(9)
    loop.now_s += 0.5
    loop.take(Cancelled(at_s=loop.now_s, request_id=0))
    loop.take(Cancelled(at_s=loop.now_s, request_id=1))
    assert loop.forgotten == [0]
    loop.end()
    assert loop.forgotten == [0, 1]
    records = loop.watch.end(loop.state)
    assert records.failure.tolist() == [FAIL_CANCELLED] * 2
    assert records.finished_s.tolist() == [1.5, 2.5]
    assert records.output_tokens.tolist() == [1, 0]
    assert records.link_bytes.tolist() == pytest.approx([10.0, 10.0])


def test_who_waits_for_a_step_cannot_be_reported_as_finished_by_it() -> None:
    loop = waiting(9)
    assert loop.run is not None
    report = new_report(steps=1, available_gbps=1.0)
    with pytest.raises(BackendError, match=r"finished=0: expected a request with a token"):
        loop.take(StepEnd(at_s=2.0, device=loop.run.device, report=report, finished=(0,)))
