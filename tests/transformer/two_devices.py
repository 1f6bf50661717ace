"""One checkpoint on two CPU devices of one process; prints what test_devices.py compares.

python -m tests.transformer.two_devices CHECKPOINT STORE    # two CPU devices
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from c2c.transformer import Model, load
from c2c.transformer.layers.cache import rows_of
from c2c.transformer.layers.layer import (
    after_attention,
    attention,
    before_attention,
    layer_of,
    rms_norm,
    turns_of,
    window_of,
)
from c2c.transformer.layers.layout import feed_forward_places
from c2c.transformer.layers.rope import angles
from c2c.transformer.running.kv_pool import KvPool

PROMPT, NEW = (5, 7, 11, 2, 3, 13, 17), 9


def alternately(models: list[Model]) -> list[int]:
    """Return greedy tokens, layer l on device l % 2: a copy of the first device's, and its KV.

    A block of a pool is one layer's page here, so that each layer's are where it computes.
    """
    params, spec, linear = models[0].params, models[0].spec, models[0].linear
    devices = [model.params.device for model in models]
    homes = [devices[number % len(devices)] for number in range(spec.layers)]
    layers = [
        jax.device_put(layer_of(params, spec, number, linear), home)
        for number, home in enumerate(homes)
    ]
    for layer, home in zip(layers, homes, strict=True):
        assert all(leaf.devices() == {home} for leaf in jax.tree.leaves(layer))
    pools = {each: KvPool.for_one(spec, 1, dtype=params.dtype, device=each) for each in devices}
    leases = {each: pool.lease(spec, block_layers=1) for each, pool in pools.items()}
    blocks = [leases[home].take(1, number) for number, home in enumerate(homes)]
    assert [leases[each].held for each in devices] == [homes.count(each) for each in devices]
    before = jax.jit(before_attention, static_argnames="spec")
    attend = jax.jit(attention, static_argnames=("window", "backend"))
    after = jax.jit(after_attention, static_argnames=("spec", "sparse"))
    ids, begin = list(PROMPT), 0
    drawn: list[int] = []
    while len(drawn) < NEW:
        positions = jnp.arange(begin, len(ids), dtype=jnp.int32)
        tokens = jnp.asarray(ids[begin:], jnp.int32)
        x = params.embed.data[tokens]
        for number, (sparse, _) in enumerate(feed_forward_places(spec)):
            home, layer = homes[number], layers[number]
            x, here = jax.device_put((x, positions), home)
            tables = jax.device_put(np.asarray([blocks[number]], np.int32), home)
            pool = replace(pools[home].arrays, tables=tables)
            rows = rows_of(here, 1, 0)
            turns = turns_of(angles(here, rows.lengths, spec), spec, number)
            q, k, v = before(layer, x, turns, spec=spec)
            window = window_of(spec, number)
            window = None if window is None else int(window)
            mixed, pages = attend(
                pool.seen_by(spec), rows, 0, window=window, q=q, k=k, v=v, backend="auto"
            )
            pools[home].arrays = pool.with_pages(pages)
            x = after(layer, x, mixed, rows, spec=spec, sparse=sparse)
        x = jax.device_put(x, devices[0])
        head = params.projections.get("head", params.embed.data)
        seen = rms_norm(x[-1:], params.final_norm, spec.norm_eps)
        begin = len(ids)
        drawn.append(int(jnp.argmax(seen @ head[: spec.vocab].T)))
        ids.append(drawn[-1])
    for number, home in enumerate(homes):
        leases[home].give(blocks[number])
    assert not any(lease.held for lease in leases.values())
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
