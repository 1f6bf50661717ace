"""Identities: payload, kernels of a step, formulas of waits, trace lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.cost.kernel_graph import Batch, step_kernels
from c2c.models import ModelSpec, kv_bytes_per_token, load_spec
from c2c.ranges import AboveZero, Count, Finite
from c2c.systems.weaver import expected_stall, payload_bytes, printed_stall, stated_objective
from experiments.claims import Result, answer, claim
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.papers.weaver.two_models import TRACE, lengths_of

__all__ = ["Stalls", "compute"]

_CLOSE: Final = 0.02  # seconds of a drawn mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Experiment: model, receiver's operators, slacks, number of waits."""

    model: str
    operators_s: tuple[AboveZero, ...]
    slacks_s: tuple[Finite, ...]
    draws: Count


@figure("weaver.model", title="WEAVER, Sections 3 and 4.2: payload, stalls, lengths",
        experiment=Stalls, draw=".drawing.draw_stalls", needs=SYSTEMS,
        traces=(TRACE,))  # fmt: skip
def compute(context: Context, experiment: Stalls) -> Computed:
    """Return three estimates of stalls by slack, random waits, identities."""
    rng = np.random.default_rng(context.seeds[0])
    ops, draws = np.array(experiment.operators_s), experiment.draws
    waits = rng.choice(ops, draws, p=ops / ops.sum()) * rng.random(draws)
    rows = [
        {
            "slack": slack, "printed": printed_stall(experiment.operators_s, slack),
            "expected": expected_stall(experiment.operators_s, slack),
            "stated": stated_objective(experiment.operators_s, slack),
            "drawn": float(np.maximum(waits - slack, 0.0).mean()),
            "drawn_stated": float(np.where(waits > slack, waits, 0.0).mean()),
        }
        for slack in experiment.slacks_s
    ]  # fmt: skip
    return Computed(
        tables={"stalls": pa.Table.from_pylist(rows)},
        results=tuple(_results(context, load_spec(experiment.model), rows)),
        finding=_finding(rows),
        caption=(
            f"Lines: three estimates of a layer's stall by slack; points: {draws:,} drawn waits. "
            "The printed formula equals the expected stall from slack 0 on, and neither of the "
            "others below."
        ),
        assumptions=(
            f"The receiver's operators take {', '.join(f'{t:g}' for t in ops)} s, and slack is "
            "K - N.",
            "The printed estimate is sum max(T - slack, 0)^2 / (2 sum T).",
            "The expected estimate is the mean of max(0, W - slack).",
            "The stated estimate is the mean of W if K < W + N, else 0.",
        ),
    )


def _finding(rows: list[dict[str, Any]]) -> str:
    ends = [r["slack"] for r in rows if abs(r["printed"] - r["expected"]) >= _CLOSE]
    if not ends:
        return "The printed stall is the mean of drawn waits at every slack"
    return (
        f"The printed stall is the mean of drawn waits above a slack of {max(ends):g} s, not below"
    )


def _results(context: Context, spec: ModelSpec, rows: list[dict[str, Any]]) -> Iterator[Result]:
    out, back = payload_bytes(spec)
    new = kv_bytes_per_token(spec) // spec.layers  # K and V of a token and layer
    of_queries = spec.heads * spec.head_dim * spec.dtype_bytes
    yield _answer(
        "sec3.qkv_payload", {"send": out - new == of_queries, "return": back == of_queries},
        f"{out:,} bytes out, of which {new:,} are K and V, and {back:,} back.",
    )  # fmt: skip
    kernels = step_kernels(spec, Batch(rows=16, chunk=1, context=1024))
    yield _answer(
        "sec31.kernels_per_iter", len(kernels),
        "14 a layer and 4; the named engine joins additions with norms and both rotations.",
    )  # fmt: skip
    one, slack = 8.0, 2.0
    alone = printed_stall([one], slack) == (one - slack) ** 2 / (2 * one)
    yield _answer(
        "sec42.wait_formula", {"W_i": alone}, "The stall of one operator, for slack from 0."
    )
    positive = [r for r in rows if r["slack"] >= 0]
    mean = all(abs(r["printed"] - r["drawn"]) < _CLOSE for r in positive)
    shown = claim("weaver.sec42.objective").value
    ours = dict.fromkeys(shown, mean)
    yield _answer(
        "sec42.objective", ours,
        "With the sum that is missing in print: the mean of drawn stalls, not what the text says "
        "it minimises.",
    )  # fmt: skip
    prompt, output = lengths_of("azure", context.traces).mean(axis=0).tolist()
    note = "The public trace without sequences above 2,048 tokens."
    yield _answer("setup.azure_conv.in", prompt, note)
    yield _answer("setup.azure_conv.out", output, note)


def _answer(name: str, ours: Any, note: str) -> Result:
    return answer(f"weaver.{name}", ours, note, "identity")
