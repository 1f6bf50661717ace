"""The section `transformer` without a GPU: weights, splits, steps, and what it concludes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from c2c.transformer import Hybrid, Linear, Reference, Staged
from experiments.gpu import Case, Context, report
from experiments.gpu.cases import Row
from experiments.gpu.transformer import results, section, splits, switching, weights
from tests.tiers import tiered

ROOT = Path(__file__).parents[4]
TINY = Context(backend="reference", scale="tiny")
SHAPE = weights.shape_of("tiny")
FULL = weights.shape_of("full")


def matrices(linear: Linear, seed: int = 3) -> dict[str, list[np.ndarray]]:
    """Return the projections of every layer, whatever they are kept in."""
    params = weights.random_weights(SHAPE, linear, seed=seed)
    found: dict[str, list[np.ndarray]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(dict(params.projections)):
        name = jax.tree_util.keystr(path, simple=True, separator="/").partition("/")[0]
        values = np.asarray(leaf).astype(np.float32)
        found.setdefault(name, []).extend(values if values.ndim == 3 else [values])
    return found


def test_a_matrix_is_the_same_wherever_it_is() -> None:
    stacked, alone, copied = (matrices(each) for each in (Hybrid(), Reference(), Staged()))
    assert stacked.keys() == alone.keys() == {"qkv", "o", "gate_up", "down", "head"}
    for name, layers in stacked.items():
        assert len(layers) == len(alone[name]) == (1 if name == "head" else SHAPE.layers)
        for ours, theirs, others in zip(layers, alone[name], copied[name], strict=True):
            np.testing.assert_array_equal(ours, theirs)
            np.testing.assert_array_equal(ours, others)
            assert np.count_nonzero(ours) > 0.99 * ours.size
            assert ours.std() * ours.shape[-1] ** 0.5 == pytest.approx(1, abs=0.1)
    assert not np.array_equal(stacked["o"][0], stacked["o"][1])
    assert not np.array_equal(stacked["o"][0], matrices(Hybrid(), seed=4)["o"][0])


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised_weights_have_the_size_of_the_others(kind: str) -> None:
    from pallas_kernels.quantized_gemm import dequantize

    params = weights.random_weights(SHAPE, Hybrid(), kind, seed=0)
    for name, packed in params.projections.items():
        plain = jax.tree.map(np.asarray, packed)
        w = np.asarray(dequantize(plain), np.float64)
        assert w.std() * packed.k**0.5 == pytest.approx(1, abs=0.15), name
    whole = weights.random_weights(SHAPE, Hybrid(), seed=0)
    assert weights.projection_bytes(params) < 0.6 * weights.projection_bytes(whole)


def test_a_tied_model_is_refused() -> None:
    with pytest.raises(ValueError, match="not tied"):
        weights.random_weights(replace(SHAPE, tie_embeddings=True), Hybrid(), seed=0)


@pytest.mark.parametrize("rows", tiered([1, 512, 2048], 512))
def test_the_chosen_split_is_the_fastest_predicted(rows: int) -> None:
    chosen = splits.split_of("chosen", FULL, rows, 1, backend="reference")
    assert chosen.predicted_s is not None
    assert chosen.linear == Hybrid(backend="reference")  # which chooses for each call
    gemms = splits.projections(FULL, rows, 1)
    assert chosen.alphas.keys() == chosen.clusters.keys() == gemms.keys()
    assert all(0 <= alpha <= 1 for alpha in chosen.alphas.values())
    assert (max(chosen.clusters.values()) > 1) == (rows > 256)
    # Nothing is faster than all weights once over the link.
    weight_bytes = sum(2 * gemm.k * gemm.n * times for gemm, times in gemms.values())
    machine = splits.machine_for(sm_count=132)
    assert chosen.predicted_s >= weight_bytes / (machine.link_gbps * 1e9)
    assert weight_bytes == 2 * (FULL.layers * 218_103_808 + FULL.hidden * FULL.vocab)
    for name in ("0", "1"):
        pure = splits.split_of(name, FULL, rows, 1, backend="reference")
        assert (pure.linear.cluster, set(pure.alphas.values())) == (1, {float(name)})
    with pytest.raises(ValueError, match="split='2'"):
        splits.split_of("2", FULL, rows, 1, backend="reference")


def test_steps_count_what_they_read_and_compute() -> None:
    params = weights.random_weights(SHAPE, Hybrid(), seed=0)
    decode = section.amounts({"what": "decode", "rows": 2, "context": 64}, SHAPE, params)
    weights_count = weights.projection_bytes(params) // 2
    assert decode["kv_bytes"] == 2 * 64 * SHAPE.layers * 2 * 2 * 32 * 2
    assert decode["flops"] == 2 * 2 * weights_count + 4 * SHAPE.layers * 4 * 32 * 2 * 64
    prefill = section.amounts({"what": "prefill", "rows": 16, "context": 16}, SHAPE, params)
    assert prefill["flops"] < 8 * decode["flops"]  # one row of the head


def test_steps_of_other_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "_held", [])
    wanted = {("staged", "none"), ("resident_whole", "none")}  # others: where logits are compared
    for case in section.cases("tiny"):
        spec = case.spec
        if spec.get("weights") != "bf16" or spec["what"] != "decode":
            continue
        if (spec["linear"], spec["split"]) not in wanted:
            continue
        wanted.remove((spec["linear"], spec["split"]))
        (row,) = section.measure(spec, TINY)
        assert row["time_s"] > 0
        assert row["weight_bytes"] == 573_440
    assert not wanted


@pytest.mark.slow
def test_logits_are_compared_value_for_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "_held", [])
    spec = {"what": "logits", "weights": "bf16", "rows": 16}
    (row,) = section.measure(spec, TINY)
    assert row["finite"]
    assert row["relative_error"] <= results.tolerance(row["layers"])
    original = section.weights_for
    calls: list[Any] = []

    def other(linear: Any, kind: str, shape: Any, context: Any) -> Any:
        calls.append(context)
        seed = context.seed + (len(calls) > 1)  # other weights, once
        return original(linear, kind, shape, replace(context, seed=seed))

    monkeypatch.setattr(section, "weights_for", other)
    (row,) = section.measure(spec, TINY)
    assert row["relative_error"] > results.tolerance(row["layers"])


@pytest.mark.slow
def test_switching_compiles_nothing() -> None:
    rows = switching.rows_of(TINY)
    assert [row["to"] for row in rows] == ["first", "first", "second", "first", "second"]
    assert [row["compiles"] for row in rows[1:]] == [0, 0, 0, 0]
    told = {
        name: {row["tokens"] for row in rows if row["to"] == name} for name in ("first", "second")
    }
    assert len(told["first"]) == len(told["second"]) == 1
    assert told["first"] != told["second"]


def synthetic(**changes: Any) -> list[Row]:
    """Return what a run would write: everything at 0.9 of its limit, copies at 0.7."""
    link, hbm, tflops = 50.0, 4000.0, 700.0
    rows: list[Row] = [
        {"what": "bound", "of": "link_dma", "gbps": link},
        {"what": "bound", "of": "hbm", "gbps": hbm},
        {"what": "bound", "of": "matmul", "tflops": tflops},
    ]
    reach = {"hybrid": 0.9, "staged": 0.7, "resident": 0.8} | changes.get("reach", {})
    for case in section.cases("full"):
        if case.spec["what"] not in ("decode", "prefill"):
            continue
        spec = case.spec
        nbytes = {"bf16": 15e9, "int8": 7.5e9, "int4": 4.2e9}[spec["weights"]]
        resident = spec["linear"].startswith("resident")
        seconds = nbytes / ((hbm if resident else link) * 1e9)
        rows.append(
            {
                **spec,
                "weight_bytes": nbytes,
                "kv_bytes": 0.0,
                "flops": 1.0,
                "time_s": seconds / reach[spec["linear"].partition("_")[0]],
            }
        )
    rows += [
        {
            "what": "switch",
            "request": number,
            "to": "first",
            "first_token_s": 0.5,
            "compiles": 5 if number == 0 else 0,
            "weight_bytes": 15e9,
            "peak_growth_bytes": 1e6,
            "peak_before_bytes": 1e6,
        }
        | (changes.get("switch", {}) if number >= 2 else {})
        for number in range(5)
    ]
    rows.append({"what": "logits", "layers": 32, "finite": True, "relative_error": 0.01})
    rows[-1] |= changes.get("logits", {})
    common = {"section": "transformer", "run": "r1", "status": "ok"}
    return [common | {"case": Case(spec=row).key} | row for row in rows]


def statuses(rows: list[Row]) -> list[str]:
    return [f.status for f in report.findings({"transformer": rows})][-5:]


def test_aims_follow_from_the_rows() -> None:
    assert statuses([]) == ["unmeasured"] * 5
    assert statuses(synthetic()) == ["pass"] * 5
    slow = statuses(synthetic(reach={"hybrid": 0.6}))
    assert slow == ["fail", "fail", "pass", "pass", "pass"]
    for change in (
        {"compiles": 1},
        {"peak_growth_bytes": 2e8},
        {"peak_before_bytes": 4e9},  # building them has used the device: nothing could be seen
    ):
        assert statuses(synthetic(switch=change))[3] == "fail"
    for logits in ({"relative_error": 0.2}, {"finite": False}):
        assert statuses(synthetic(logits=logits))[4] == "fail"
    unknown = [r for r in synthetic() if "peak_growth_bytes" not in r]
    assert statuses(unknown)[3] == "unmeasured"
    dry = [row | {"dry_run": True} for row in synthetic()]
    assert statuses(dry) == ["unmeasured"] * 5


def test_limits_are_of_the_run_and_of_where_the_weights_are() -> None:
    steps = results.with_limits(synthetic())
    for row in steps:
        resident = row["linear"].startswith("resident")
        assert row["binds"] == ("hbm" if resident else "link")
        assert row["of_hbm" if resident else "of_link"] == pytest.approx(row["fraction"])
        expected = {"hybrid": 0.9, "staged": 0.7}.get(row["linear"], 0.8)
        assert row["fraction"] == pytest.approx(expected)
    assert results.with_limits([r for r in synthetic() if r["what"] != "bound"]) == []
    texts = [f.measured for f in report.findings({"transformer": synthetic()})]
    assert "1: 1.29x, 0.90 of the link (copied 0.70), resident 0.80 of HBM" in texts[-5]


_ALONE = """
import sys
# What a Python for measuring must have: jax, NumPy, what these need, and Arrow.
allowed = {"jax", "jaxlib", "jaxtyping", "numpy", "ml_dtypes", "opt_einsum", "scipy", "etils",
           "pyarrow", "c2c", "pallas_kernels", "experiments"}

class Only:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in allowed or top in sys.stdlib_module_names or top.startswith("_"):
            return self.finder.find_spec(name, path, target)
        return None

sys.meta_path[:] = [Only(finder) for finder in sys.meta_path]
for absent in ("yaml", "omegaconf"):
    try:
        __import__(absent)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{absent} was not kept out")
from experiments.gpu import report, sections
from experiments.gpu.transformer import section, switching, weights
from c2c.transformer import Hybrid, Model
for scale in ("full", "quick", "tiny"):
    assert sections.SECTIONS["transformer"].cases(scale)
assert {f.status for f in report.findings({})} == {"unmeasured"}
spec, linear = weights.shape_of("tiny"), Hybrid(backend="reference")
model = Model(spec=spec, params=weights.random_weights(spec, linear, seed=0), linear=linear)
assert len(model.generate([1, 2, 3], 2)) == 2
print("alone")
"""


def test_it_needs_nothing_that_a_gpu_machine_lacks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ALONE], capture_output=True, text=True, cwd=ROOT, timeout=600
    )
    assert done.stdout.strip().endswith("alone"), done.stderr[-2000:]
