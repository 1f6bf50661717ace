"""One checkpoint on two CPU devices of one process; prints what test_devices.py compares.

Run as `python -m tests.transformer.two_devices CHECKPOINT STORE` with two CPU devices.
"""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from c2c.transformer import Model, load, new_cache
from c2c.transformer.cache import rows_of
from c2c.transformer.layer import (
    Layer,
    after_attention,
    attention,
    before_attention,
    place_in,
    rms_norm,
    window_of,
)
from c2c.transformer.rope import angles
from c2c.transformer.weights.layout import feed_forward_places

PROMPT, NEW, PAGES, PAGE_TOKENS = (5, 7, 11, 2, 3, 13, 17), 9, 8, 4


def alternately(models: list[Model]) -> list[int]:
    """Return greedy tokens, layer l computed on device l % 2, KV and weights where it computes."""
    spec = models[0].spec
    tables = np.arange(PAGES, dtype=np.int32)[None]
    caches = [
        new_cache(
            spec,
            pages=PAGES,
            page_tokens=PAGE_TOKENS,
            dtype=m.params.dtype,
            tables=tables,
            device=m.params.device,
        )
        for m in models
    ]
    before = jax.jit(before_attention, static_argnames="spec")
    attend = jax.jit(attention, static_argnames=("window", "backend"))
    after = jax.jit(after_attention, static_argnames=("spec", "sparse"))
    ids, begin, drawn = list(PROMPT), 0, []
    while len(drawn) < NEW:
        positions = jnp.arange(begin, len(ids), dtype=jnp.int32)
        tokens = jnp.asarray(ids[begin:], jnp.int32)
        x = models[0].params.embed.data[tokens]
        for number, (sparse, place) in enumerate(feed_forward_places(spec)):
            which = number % len(models)
            model, cache = models[which], caches[which]
            x, here = jax.device_put((x, positions), model.params.device)
            rows = rows_of(here, 1, 0)
            layer = Layer(
                small=model.params.layers,
                projections={
                    name: stack[place_in(name, number, place)]
                    for name, stack in model.params.projections.items()
                    if name != "head"
                },
                linear=model.linear,
                at=number,
                which=None,
                place=place if spec.dense_layers else None,
            )
            turns = angles(here, rows.lengths, spec)
            q, k, v = before(layer, x, turns, spec=spec)
            first, window = number * PAGES, window_of(spec, number)
            window = None if window is None else int(window)
            mixed, caches[which] = attend(
                cache, rows, first, window=window, q=q, k=k, v=v, backend="auto"
            )
            x = after(layer, x, mixed, rows, spec=spec, sparse=sparse)
        last = models[which]
        head = last.params.projections.get("head", last.params.embed.data)
        seen = rms_norm(x[-1:], last.params.final_norm, spec.norm_eps)
        begin = len(ids)
        drawn.append(int(jnp.argmax(seen @ head[: spec.vocab].T)))
        ids.append(drawn[-1])
    return drawn


def main(checkpoint: str, store: str) -> None:
    """Print a JSON object."""
    models, counts = [], []
    for device in jax.devices():
        model = load(checkpoint, "float32", executables=store, device=device)
        assert model.executables is not None
        earlier = model.executables.compiled
        tokens = list(model.generate(list(PROMPT), NEW))
        counts.append(model.executables.compiled - earlier)
        models.append(model)
        arrays = jax.tree.leaves((model.params.layers, model.params.projections))
        on = {str(device) for array in arrays for device in array.devices()}
        print(json.dumps({"tokens": tokens, "compiled": counts[-1], "on": sorted(on)}))
    print(json.dumps({"tokens": alternately(models)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
