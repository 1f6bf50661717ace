"""Identities: payload, kernels of a step, the paper's formulas of waits, lengths of the trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.cost.kernel_graph import Batch, step_kernels
from c2c.models import kv_bytes_per_token, load_spec
from c2c.systems.weaver import expected_stall, payload_bytes, printed_stall, stated_objective
from experiments.claims import Result, answer, claim
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.weaver.served import TRACE, lengths_of

__all__ = ["OPS", "SLACKS", "compute"]

OPS: Final = (8.0, 4.0, 2.0)
SLACKS: Final = (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 5.0, 7.0)
_DRAWS: Final = 200_000


@figure("weaver.model", title="WEAVER, Sections 3 and 4.2: payload, stalls, lengths",
        draw="weaver.draw_stalls", needs=SYSTEMS, traces=(TRACE,))  # fmt: skip
def compute(context: Context) -> Computed:
    """Return three estimates of a stall by slack, random waits, and the identities."""
    rng = np.random.default_rng(context.seeds[0])
    ops = np.array(OPS)
    waits = rng.choice(ops, _DRAWS, p=ops / ops.sum()) * rng.random(_DRAWS)
    rows = [
        {
            "slack": slack, "printed": printed_stall(OPS, slack),
            "expected": expected_stall(OPS, slack), "stated": stated_objective(OPS, slack),
            "drawn": float(np.maximum(waits - slack, 0.0).mean()),
            "drawn_stated": float(np.where(waits > slack, waits, 0.0).mean()),
        }
        for slack in SLACKS
    ]  # fmt: skip
    return Computed(
        tables={"stalls": pa.Table.from_pylist(rows)},
        results=tuple(_results(context, rows)),
        caption=(
            f"Lines: three estimates of a layer's stall by slack; points: {_DRAWS:,} drawn waits. "
            "The printed formula equals the expected stall from slack 0 on, and neither of the "
            "others below."
        ),
        assumptions=(
            "The receiver's operators take 8, 4 and 2 s, and slack is K - N.",
            "The printed estimate is sum max(T - slack, 0)^2 / (2 sum T).",
            "The expected estimate is the mean of max(0, W - slack).",
            "The stated estimate is the mean of W if K < W + N, else 0.",
        ),
    )


def _results(context: Context, rows: list[dict[str, Any]]) -> Iterator[Result]:
    spec = load_spec("llama-3-8b")
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
    mean = all(abs(r["printed"] - r["drawn"]) < 0.02 for r in positive)
    shown = claim("weaver.sec42.objective").value
    ours = dict.fromkeys(shown, mean)
    yield _answer(
        "sec42.objective", ours,
        "With the sum that is missing in print: the mean of drawn stalls, not what the text says "
        "it minimises.",
    )  # fmt: skip
    prompt, output = lengths_of("azure", context.traces).mean(axis=0).tolist()
    said = "The public trace without sequences above 2,048 tokens."
    yield _answer("setup.azure_conv.in", prompt, said)
    yield _answer("setup.azure_conv.out", output, said)


def _answer(name: str, ours: Any, note: str) -> Result:
    return answer(f"weaver.{name}", ours, note, "identity")
