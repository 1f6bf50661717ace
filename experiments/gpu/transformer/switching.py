"""Switching between two models of one architecture in one process, both in host memory.

    python -m experiments.gpu.transformer.switching <settings as JSON>

Prints a JSON list of rows: two requests to the first model, the first request to the second model,
then one more to each. A request is a prompt, timed to its first token, and decodes a few tokens
more, so that decode steps count too.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax
import numpy as np

from c2c.models import ModelSpec
from c2c.transformer import Hybrid, Model
from experiments.gpu import Context, Row, wait
from experiments.gpu.transformer.weights import projection_bytes, random_weights, shape_of

PROMPT, NEW = 128, 4


def rows_of(context: Context, spec: ModelSpec | None = None) -> list[Row]:
    """Make both models, send the requests and return a row for each request.

    Args:
      context: backend, scale and seed.
      spec: spec of both models; None for that of the scale.
    """
    spec = shape_of(context.scale) if spec is None else spec
    linear = Hybrid(backend=context.backend)
    compiled: list[float] = []

    def listen(event: str, duration_secs: float, **_more: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    models = {}
    for number, name in enumerate(("first", "second")):
        params = random_weights(spec, linear, seed=context.seed + number)
        wait(params)
        models[name] = Model(spec=spec, params=params, linear=linear)
    weight_bytes = projection_bytes(models["second"].params)
    ids = np.random.default_rng(context.seed).integers(0, spec.vocab, PROMPT).tolist()
    rows: list[Row] = []
    before = _memory()
    for step, name in enumerate(("first", "first", "second", "first", "second")):
        count, memory = len(compiled), _memory()
        start = time.perf_counter()
        tokens = models[name].stream(ids, NEW)
        said = [next(tokens)]
        first_s = time.perf_counter() - start
        said += tokens
        rows.append(
            {
                "model": spec.name,
                "request": step,
                "to": name,
                "first_token_s": first_s,
                "compiles": len(compiled) - count,
                "weight_bytes": weight_bytes,
                "tokens": json.dumps(said),
                **_growth(memory, _memory(), before),
            }
        )
    return rows


def _memory() -> dict[str, int] | None:
    """Return the device's bytes in use and their peak, None if it does not report them."""
    stats = jax.devices()[0].memory_stats()
    return None if stats is None else {k: stats[k] for k in ("bytes_in_use", "peak_bytes_in_use")}


def _growth(
    before: dict[str, int] | None, after: dict[str, int] | None, first: dict[str, int] | None
) -> Row:
    if before is None or after is None or first is None:
        return {}
    return {
        "peak_growth_bytes": after["peak_bytes_in_use"] - before["peak_bytes_in_use"],
        "peak_bytes": after["peak_bytes_in_use"],
        "peak_before_bytes": first["peak_bytes_in_use"],
        "in_use_bytes": after["bytes_in_use"],
    }


def main(arguments: list[str]) -> None:
    """Run the requests and print their rows."""
    settings: dict[str, Any] = json.loads(arguments[0])
    print(json.dumps(rows_of(Context(**settings))))


if __name__ == "__main__":
    main(sys.argv[1:])
