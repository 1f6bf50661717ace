"""Random placements of a step over CPU devices, compared to the bit; a process of its own.

python -m tests.systems.tessera.place PLACEMENTS SEED     # prints a JSON line
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import Any

if __name__ == "__main__":
    # without optimisation compiling takes half the time, and what is compared is the same code
    os.environ["XLA_FLAGS"] = (
        "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    )

import jax
import jax.numpy as jnp
import numpy as np

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.systems.workers import (
    MODES,
    Pieces,
    Replicas,
    WorkerError,
    chains_of,
    cut,
    routes_of,
    run_placed,
)
from c2c.transformer import Cache, Reference, forward, random_params

ROWS, WIDTH, PAGE, STEPS = 2, 2, 16, 3
# From so many placements on two layers over up to four devices: compiling is what costs.
MANY = 100


def spec_of(experts: int, layers: int) -> ModelSpec:
    moe = {"experts": experts, "experts_per_token": 2, "moe_intermediate": 32} if experts else {}
    return ModelSpec(
        name="m", family="mixtral" if experts else "llama", layers=layers, hidden=32, heads=4,
        kv_heads=2, head_dim=8, intermediate=64, vocab=67, tie_embeddings=False, max_position=64,
        **moe,
    )  # fmt: skip


def traced(experts: int, chunk: int, layers: int) -> tuple[Pieces, Any, list[Any]]:
    """A step, its arguments but tokens and positions, and these for each of some steps."""
    rng = np.random.default_rng(experts)
    spec = spec_of(experts, layers)
    params = random_params(spec, rng, dtype="bfloat16", placement=Reference().placement)
    pool = (spec.layers * ROWS * WIDTH, PAGE, spec.kv_heads, spec.head_dim)
    k, v = (jnp.asarray(rng.normal(size=pool), jnp.bfloat16) for _ in range(2))
    tables = jnp.asarray(rng.permutation(ROWS * WIDTH).reshape(ROWS, WIDTH), jnp.int32)
    steps = [
        (jnp.asarray(rng.integers(0, spec.vocab, (ROWS, chunk)), jnp.int32),
         jnp.asarray(np.arange(chunk)[None] + chunk * n + np.zeros((ROWS, 1)), jnp.int32))
        for n in range(STEPS)
    ]  # fmt: skip

    def step(params: Any, tables: Any, tokens: Any, positions: Any, k: Any, v: Any) -> Any:
        logits, cache = forward(
            params, tokens, positions, Cache(k=k, v=v, tables=tables), spec,
            linear=Reference(), backend="reference",
        )  # fmt: skip
        return logits, cache.k, cache.v

    arguments = (params, tables, *steps[0], k, v)
    leaves = jax.tree.leaves(arguments)
    return cut(step, *arguments), leaves, steps


def carried(pieces: Pieces) -> dict[int, int]:
    """Keys and values: by the argument, the result that is it in the next step."""
    return dict(zip(pieces.given[-2:], pieces.results[1:], strict=True))


def run(
    pieces: Pieces, leaves: list[Any], steps: list[Any], gpu_of: list[int], mode: Any,
    replicas: Replicas | None = None,
) -> Any:  # fmt: skip
    """Three steps, each with the keys and values that the one before has left.

    The placement is another one at each step, as after a switch of the policy. Returns what is
    left, and bytes of the first request that were sent: all, and of its cache after the first step.
    """
    found, cache, sent, later = [], leaves[-2:], 0, 0
    versions = {
        v for chain in chains_of(pieces, carried(pieces)).values() for vs in chain for v in vs
    }
    for number, (tokens, positions) in enumerate(steps):
        first = [*leaves[:-4], tokens, positions, *cache]
        # a second request, of other tokens, is in flight beside it
        second = [*leaves[:-4], (tokens + 1) % 67, positions, *leaves[-2:]]
        placed = gpu_of[number:] + gpu_of[:number]
        ran = run_placed(
            pieces, placed, jax.devices(), [first, second], mode=mode, replicas=(replicas,),
            piece_s=[1.0 + k % 3 for k in range(len(placed))],
        )  # fmt: skip
        cache = list(ran.results[0][1:])
        mine = [each for each in ran.sent if each.request == 0]
        sent += sum(each.nbytes for each in mine)
        later += sum(each.nbytes for each in mine if number and each.value in versions)
        found += [np.asarray(array).tobytes() for array in itertools.chain(*ran.results)]
    return found, (sent, later)


def main(placements: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = [(0, 1), (4, 1), (0, 5)]  # dense decode, experts, prefill
    said: dict[str, Any] = {"equal": 0, "sent": 0, "pieces": []}
    for number, (experts, chunk) in enumerate(shapes):
        pieces, leaves, steps = traced(experts, chunk, 2 if placements >= MANY else 1)
        count = len(pieces.pieces)
        said["pieces"].append(count)
        wanted, nothing = run(pieces, leaves, steps, [0] * count, "none")
        assert nothing == (0, 0)
        for k in range(placements * number // 3, placements * (number + 1) // 3):
            gpu_of = [
                int(g) for g in rng.integers(0, 2 + k % (3 if placements >= MANY else 2), count)
            ]
            kept = Replicas(pieces, carried(pieces)) if k % 2 else None
            got, (sent, _) = run(pieces, leaves, steps, gpu_of, MODES[k % len(MODES)], kept)
            assert got == wanted, (experts, chunk, gpu_of, k)
            said["equal"] += 1
            said["sent"] += sent
        if not experts and chunk == 1:
            said |= broken(pieces, leaves, steps, wanted)
            said |= deltas(pieces, leaves, steps, wanted)
    return said


def broken(pieces: Pieces, leaves: list[Any], steps: list[Any], wanted: Any) -> dict[str, Any]:
    """A value that is not sent, a cache that is a step late, a piece that fails."""
    gpu_of = [k % 2 for k in range(len(pieces.pieces))]
    routes = dict(routes_of(pieces, gpu_of))
    lost = next(value for value, gpus in routes.items() if gpus)
    first = [*leaves[:-4], *steps[0], *leaves[-2:]]
    said = {}
    try:
        run_placed(pieces, gpu_of, jax.devices(), [first], routes={**routes, lost: frozenset()})
    except WorkerError as problem:
        said["lost"] = str(problem)
    late = [*leaves[:-4], *steps[1], *leaves[-2:]]
    ran = run_placed(pieces, gpu_of, jax.devices(), [late])
    said["late_differs"] = np.asarray(ran.results[0][0]).tobytes() != wanted[6]
    wrong = [*first]
    wrong[-3] = jnp.zeros((ROWS, 3), jnp.int32)
    try:
        run_placed(pieces, gpu_of, jax.devices(), [wrong])
    except WorkerError as problem:
        said["failed"] = str(problem)
    return said


class Late(Replicas):
    """Copies that get what was written one update late."""

    def _lacking(self, chain: Any, had: int, version: int) -> Any:
        return super()._lacking(chain, had, version)[:-1]


def deltas(pieces: Pieces, leaves: list[Any], steps: list[Any], wanted: Any) -> dict[str, Any]:
    """Bytes between devices with and without copies kept, and with copies that are late."""
    count = len(pieces.pieces)
    gpu_of = [k % 2 for k in range(count)]
    whole, (_, sent_whole) = run(pieces, leaves, steps, gpu_of, "priority")
    kept, (_, sent) = run(
        pieces, leaves, steps, gpu_of, "priority", Replicas(pieces, carried(pieces))
    )  # fmt: skip
    late, _ = run(pieces, leaves, steps, gpu_of, "priority", Late(pieces, carried(pieces)))
    assert whole == kept == wanted
    stale = Replicas(pieces, carried(pieces))
    run(pieces, leaves, steps[:1], gpu_of, "none", stale)
    try:
        run(pieces, leaves, steps[:1], gpu_of, "none", stale)
    except SettingError as problem:
        refused = str(problem)
    return {"sent_whole": sent_whole, "sent_deltas": sent, "late_delta_differs": late != wanted,
            "refused": refused}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
