"""Strips of W that stay in device memory: read from there, left there, counted, for any share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gemm import (
    Gemm,
    Resident,
    api,
    compute,
    launch_traffic,
    plan_launch,
    sm90,
)
from pallas_kernels.gemm.resident import with_cache, with_residency
from pallas_kernels.gemm.schedule import Plan, spread
from pallas_kernels.mosaic import interpret_params
from tests.compilations import compilations
from tests.pallas_kernels.gemm.cases import CONVERTING, EVERY, OUTPUT_ONLY, Case, clustered, same
from tests.pallas_kernels.gemm.suite import GGUF, IN_TURN, INT4, OF_EACH, WIDE
from tests.pallas_kernels.interpreting import SMALL, count_copies, races_found, reset
from tests.tiers import tiered

BEGIN = 64  # column of the caches at which the case's own begin


@dataclass(frozen=True)
class Cached:
    """Operands of a case, with W in two memories and nonsense wherever it is not to be read."""

    x: Any
    w: Any
    cache: np.ndarray
    right: np.ndarray


def columns_axis(case: Case) -> int:
    """Axis of W's columns, from the end of its shape."""
    return {"kn": -1, "nk": -2, "tiles": -4}[case.gemm.w_layout]


def cached(case: Case, columns: int, *, spoil_host: bool = True) -> Cached:
    """Put the first `columns` into a cache with room for all, behind those of somebody else."""
    x, w, exact = case.operands()
    gemm = replace(case.gemm, resident=case.gemm.n + 2 * BEGIN)
    stored = np.array(getattr(w, "data", w))
    cache = np.zeros(gemm.resident_shape, stored.dtype)
    nonsense = 0x55 if stored.dtype.kind == "i" else np.nan
    cache[...] = nonsense
    axis, each = columns_axis(case), 64 if case.gemm.w_layout == "tiles" else 1
    own, first = (
        np.moveaxis(array, axis, 0)[start // each : (start + columns) // each]
        for array, start in ((cache, BEGIN), (stored, 0))
    )
    own[...] = first
    if spoil_host:
        first[...] = nonsense
    data = jnp.asarray(stored)
    host = replace(w, data=data) if hasattr(w, "data") and not isinstance(w, jax.Array) else data
    return Cached(x=x, w=host, cache=cache, right=case.right(x, exact))


def columns_of(case: Case, strips: int) -> int:
    """Columns of the first strips, as the padded W has them."""
    return min(strips * case.config.tn, case.gemm.n)


CASES = {
    "[N, K], ragged": Case(m=72, k=201, n=310, w_layout="nk", alphas=EVERY),
    "[K, N], strips cut by N": Case(m=72, k=192, n=310, config=WIDE, alphas=(0.5,)),
    "tiles, cluster of 2": Case(
        m=136, k=256, n=250, tiles=True, config=clustered(SMALL, 2), alphas=(0.0, 0.5)
    ),
    "in turn": Case(m=136, k=192, n=250, config=IN_TURN, alphas=(0.5,)),
    "SymGEMM alone, cluster of 4": Case(
        m=200, k=128, n=256, config=replace(clustered(SMALL, 4), kc=0)
    ),
    "int8 tiles of K": Case(m=72, k=500, n=250, weights=INT4, config=CONVERTING, alphas=(0.4,)),
    "offsets, cluster of 2": Case(
        m=140, k=384, n=190, weights=GGUF, config=clustered(CONVERTING, 2), alphas=(0.5,)
    ),
    "experts": Case(m=75, k=128, n=192, sizes=(66, 0, 3), alphas=EVERY),
    "experts, quantised": Case(
        m=40, k=256, n=192, sizes=(7, 0, 30), weights=INT4, config=replace(OUTPUT_ONLY, tm=8)
    ),
}


SHARED = {name: CASES[name] for name in ("[N, K], ragged", "experts", "experts, quantised")}
FILLED = {name: case for name, case in CASES.items() if case.sizes is None}


@pytest.mark.parametrize(
    "case", tiered(SHARED.values(), SHARED["experts, quantised"]), ids=SHARED.keys()
)
def test_any_share_is_read_from_device_memory_and_only_that(case: Case) -> None:
    strips = -(-case.gemm.n // case.config.tn)
    for number, resident in enumerate(sorted({0, 1, strips // 2, strips})):
        columns = columns_of(case, resident)
        one = cached(case, columns)
        given = Resident(cache=jnp.asarray(one.cache), columns=columns, begin=BEGIN)
        alpha = case.tried[number % len(case.tried)]
        same(case.run(one.x, one.w, alpha=alpha, resident=given), one.right)


@pytest.mark.parametrize(
    "case",
    tiered(FILLED.values(), CASES["[N, K], ragged"], CASES["offsets, cluster of 2"]),
    ids=FILLED.keys(),
)
def test_a_launch_leaves_what_it_has_read_and_the_next_reads_it_there(case: Case) -> None:
    before, after = columns_of(case, 1), case.gemm.n
    one, whole = cached(case, before), cached(case, after)
    assert before < after
    for alpha in case.tried:
        cache = jax.new_ref(jnp.asarray(one.cache))
        given = Resident(cache=cache, columns=before, begin=BEGIN, fill=after)
        same(case.run(one.x, one.w, alpha=alpha, resident=given), one.right)
        # all of W, and nobody else's columns
        same(np.asarray(cache[...]), whole.cache)
    # nothing of W is left where the host has it
    given = replace(given, columns=after)
    same(case.run(whole.x, whole.w, alpha=case.tried[0], resident=given), whole.right)


@pytest.mark.parametrize("case", FILLED.values(), ids=FILLED.keys())
def test_the_reference_fills_too(case: Case) -> None:
    before, after = columns_of(case, 1), case.gemm.n
    one, whole = cached(case, before, spoil_host=False), cached(case, after)
    cache = jax.new_ref(jnp.asarray(one.cache))
    given = Resident(cache=cache, columns=before, begin=BEGIN, fill=after)
    alpha = case.tried[0]
    same(
        np.asarray(case.call(one.x, one.w, alpha=alpha, resident=given, backend="reference")),
        one.right,
    )
    same(np.asarray(cache[...]), whole.cache)


def test_filling_part_of_it_leaves_the_rest() -> None:
    case = CASES["[N, K], ragged"]
    one, more = cached(case, 64), cached(case, 192)
    cache = jax.new_ref(jnp.asarray(one.cache))
    # half a strip is none: 255 columns are three strips
    given = Resident(cache=cache, columns=127, begin=BEGIN, fill=255)
    same(case.run(one.x, one.w, alpha=0.5, resident=given), one.right)
    same(np.asarray(cache[...]), more.cache)


@pytest.mark.parametrize("case", tiered([OF_EACH["hybrid"], OF_EACH["grouped, quantized"]]))
def test_the_share_does_not_recompile(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    x, stack, exact = case.operands(stack=(2,))
    stored = np.asarray(getattr(stack, "data", stack))
    # all of layer 1 stands behind all of layer 0
    cache = jnp.concatenate(list(jnp.asarray(stored)), columns_axis(case) + stored.ndim - 1)
    n = case.gemm.n
    builds: list[Any] = []
    build = sm90.build

    def run(layer: Any, columns: Any, begin: Any) -> None:
        given = Resident(cache=cache, columns=columns, begin=begin)
        out = case.run(x, stack, alpha=0.5, layer=layer, resident=given)
        same(out, case.right(x, exact[int(layer)]))

    run(0, 64, 0)
    monkeypatch.setattr(sm90, "build", lambda *a, **k: builds.append(a) or build(*a, **k))
    with compilations() as seen:
        run(0, n, 0)
        for share in (0, n):
            run(1, np.int64(share), np.int32(n))
    assert not builds
    assert not seen


def test_layers_of_one_cache_in_a_scan_with_traced_shares() -> None:
    case = Case(m=40, k=128, n=192, w_layout="nk")
    x, stack, exact = case.operands(stack=(3,))
    stored = np.asarray(stack.data)
    # layer 0 whole, layer 1 the first strip, layer 2 not at all; shares out of range are clamped
    cache = jnp.concatenate([stored[0], stored[1, :64]])
    columns, begins = jnp.array([999, 64, -5]), jnp.array([0, 192, 256])
    spoilt = stored.copy()
    spoilt[0], spoilt[1, :64] = np.nan, np.nan
    w = replace(stack, data=jnp.asarray(spoilt))

    @jax.jit
    def every_layer(x: jax.Array, w: Any) -> jax.Array:
        def step(carry: None, layer: jax.Array) -> tuple[None, jax.Array]:
            given = Resident(cache=cache, columns=columns[layer], begin=begins[layer])
            call = case.call(x, w, alpha=0.5, layer=layer, resident=given, backend="interpret")
            return carry, call

        return jax.lax.scan(step, None, jnp.arange(3))[1]

    for out, matrix in zip(np.asarray(every_layer(x, w)), exact, strict=True):
        same(out, case.right(x, matrix))


@pytest.mark.parametrize("case", [CASES["[N, K], ragged"], CASES["offsets, cluster of 2"]])
def test_counted_bytes_are_the_models(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # tm is not tn or tk, so that tiles of X and W differ in shape
    warpgroups = 2 if case.weights is None else 1
    case = replace(case, config=replace(case.config, tm=128, warpgroups=warpgroups, stagger=False))
    config, tn = case.config, case.config.tn
    w_tile = (tn, config.tk if case.weights is None else config.tk * case.gemm.w_bits // 8)
    strips = -(-case.gemm.n // config.tn)
    for resident, end in ((0, strips - 1), (strips - 1, strips)):
        columns, fill = columns_of(case, resident), columns_of(case, end)
        one = cached(case, columns, spoil_host=False)
        given = Resident(
            cache=jax.new_ref(jnp.asarray(one.cache)), columns=columns, begin=BEGIN, fill=fill
        )
        with monkeypatch.context() as patch:
            copies = count_copies(patch)
            case.run(one.x, one.w, alpha=0.5, resident=given)
        gemm = with_cache(case.gemm, given)
        plan = with_residency(plan_launch(gemm, config, alpha=0.5), gemm, config, given)
        model = launch_traffic(gemm, config, plan)
        found = {"cache": 0.0, "host": 0.0}
        for load in copies.loads:
            if load.tile == w_tile:
                found["cache" if load.rows == gemm.resident else "host"] += load.nbytes
        left = sum(store.nbytes for store in copies.stores if store.rows == gemm.resident)
        assert found == {"cache": model.resident_bytes, "host": model.w_bytes}
        assert left == model.filled_bytes
        assert (
            model.w_bytes + model.resident_bytes
            == launch_traffic(gemm, config, replace(plan, resident_strips=0, fill_end=0)).w_bytes
        )


def races(case: Case, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return True if a launch that fills a cache has a race."""
    settings = interpret_params(detect_races=True)
    monkeypatch.setattr(api, "interpret_settings", lambda backend: settings)
    one = cached(case, 64)
    cache = jax.new_ref(jnp.asarray(one.cache))
    given = Resident(cache=cache, columns=64, begin=BEGIN, fill=case.gemm.n)
    reset()
    case.run(one.x, one.w, alpha=0.5, resident=given)
    found = races_found()
    reset()
    return found


@pytest.mark.parametrize("name", tiered(["[N, K], ragged", "int8 tiles of K"]))
def test_a_slot_is_not_loaded_again_before_it_is_stored(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not races(CASES[name], monkeypatch)


def test_the_race_detector_sees_a_slot_that_is_freed_too_early(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compute, "left", lambda: None)
    jax.clear_caches()  # kernels are built anew, with the change
    # which copy comes first is a matter of threads: one of some runs shows it
    assert any(races(CASES["[N, K], ragged"], monkeypatch) for _ in range(5))
    jax.clear_caches()


@pytest.mark.parametrize("strips", [1, 2, 5, 12])
def test_both_memories_are_drawn_on_from_beginning_to_end(strips: int) -> None:
    for resident in range(strips + 1):
        order = [spread(at, resident, strips) for at in range(strips + 2)]
        assert sorted(order) == list(range(strips + 2))
        assert order[strips - 1 :] == [strips - 1, strips, strips + 1]  # N may cut the last
        near = np.cumsum([strip < resident for strip in order[:strips]])
        assert np.abs(near - resident * np.arange(1, strips + 1) / strips).max() < 1


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"columns": 321}, r"resident.columns=321: expected from 0 to 320"),
        ({"columns": 256, "begin": 192}, r"resident.columns=256: expected from 0 to 192"),
        ({"begin": 32}, r"resident.begin=32: expected a multiple of 64 from 0 to the 384"),
        ({"fill": 64}, r"resident.fill=64: expected None, since the cache is no reference"),
        ({"cache": jnp.zeros((384, 128), jnp.bfloat16)}, "expected Cx192 and bfloat16"),
        ({"cache": jnp.zeros((384, 192), jnp.float16)}, "expected Cx192 and bfloat16"),
        ({"cache": jnp.zeros((100, 192), jnp.bfloat16)}, "a multiple of 64"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], wrong: str) -> None:
    case = Case(m=8, k=192, n=320, w_layout="nk")
    x, w, _ = case.operands()
    given = Resident(cache=jnp.zeros((384, 192), jnp.bfloat16), columns=0)
    with pytest.raises(ValueError, match=wrong):
        case.call(x, w, alpha=1.0, resident=replace(given, **change), backend="reference")


def test_experts_have_no_fill() -> None:
    with pytest.raises(ValueError, match="expected a cache of one matrix"):
        Gemm(m=8, k=64, n=64, experts=2, resident=64, fills=True)


def test_a_plain_launch_reads_the_scalars_it_read_before() -> None:
    plan = Plan(sym_strips=1, sym_clusters=2, active_clusters=3, layer=4)
    assert plan.scalars(Gemm(m=8, k=64, n=64)) == (1, 2, 3, 4)
    assert len(plan.scalars(Gemm(m=8, k=64, n=64, resident=64))) == 7
