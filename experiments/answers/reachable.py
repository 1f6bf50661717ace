"""Targets that no fleet meets, found before any run."""

from __future__ import annotations

from collections import Counter

import numpy as np

from c2c.config import RunSetup
from c2c.errors import SettingError

__all__ = ["check_reachable"]


def check_reachable(setup: RunSetup) -> None:
    """Raise if too many requests exceed their model's context."""
    deployments = setup.serving.deployments
    longest = np.array([one.spec.max_position for one in deployments])
    goal = float(setup.settings["slo"]["attainment"])
    requests, over = 0, Counter[str]()
    for block in setup.workload.blocks():
        tokens = block.prompt_tokens.astype(np.int64) + block.output_tokens
        requests += len(block)
        over.update(deployments[m].spec.name for m in block.model[tokens > longest[block.model]])
    count = over.total()
    if requests - count >= goal * requests:
        return
    tokens_of = {one.spec.name: one.spec.max_position for one in deployments}
    models = ", ".join(f"{name}: {tokens_of[name]:,} tokens" for name in sorted(over)[:3])
    raise SettingError(
        "slo.attainment", goal, f"at most {_down(1.0 - count / requests)}",
        f"{count:,} of {requests:,} requests are longer than their model's context ({models}"
        f"{', ...' if len(over) > 3 else ''}), so at most {100 * (1.0 - count / requests):.4g} % "
        "can be on target with any fleet. Set it lower, or take models with a longer context.",
    )  # fmt: skip


def _down(share: float) -> str:
    return f"{int(share * 1000) / 1000:g}"
