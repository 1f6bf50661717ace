"""Results of the section `transformer`: limits reached, and its aims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.gpu import Row
from experiments.gpu.kernels import analysis

Judged = tuple[str, Sequence[bool], str]
"""(aim, True for each case in which it holds, measured values); no cases: unmeasured."""

SWITCH_SHARE = 0.01
"""Share of the weights by which the device's peak may grow when another model is asked."""
_BUILT_SHARE = 0.10  # a peak above this before any request would hide a copy
_ROUNDINGS = 8  # to bf16, in each layer


def with_limits(rows: Sequence[Row]) -> list[Row]:
    """Return the timed steps with their limit, and the shares of link and device memory they reach.

    `limit_s` is the largest of: the projections once over the link (or from device memory, if they
    are there), keys and values once from device memory, the operations; at the rates of the same
    run. `of_link` is the rate of the weights over that of the link, `of_hbm` the rate of reads of
    device memory over its bound. Rows of a run without bounds are left out.
    """
    bounds, found = analysis.bounds_by_run(rows), []
    for row in rows:
        of = bounds.get(row["run"])
        if row["status"] != "ok" or row["what"] not in ("decode", "prefill") or of is None:
            continue
        host = not str(row["linear"]).startswith("resident")
        over_link = row["weight_bytes"] if host else 0
        in_memory = row["kv_bytes"] + (0 if host else row["weight_bytes"])
        parts = of.seconds(over_link, in_memory, row["flops"])
        shares = {f"of_{name}": parts[name] / row["time_s"] for name in ("link", "hbm")}
        found.append(row | analysis.limited(row, parts) | shares)
    return found


def aims(rows: Sequence[Row]) -> list[Judged]:
    """Judge every aim of a model whose weights stay in host memory."""
    steps = with_limits(rows)
    return [
        _faster(steps, "decode", "8B in bf16 decodes from host memory faster than copied by layer"),
        _faster(steps, "prefill", "8B in bf16 prefills from host memory faster than copied"),
        _fewer_bits(steps),
        _switched(rows),
        _same_logits(rows),
    ]


def _best(steps: Iterable[Row], **where: Any) -> Row | None:
    """Return the fastest of the steps with these values, None if there is none."""
    chosen = (row for row in steps if all(row.get(k) == v for k, v in where.items()))
    return min(chosen, key=lambda row: float(row["time_s"]), default=None)


def _faster(steps: Sequence[Row], what: str, aim: str) -> Judged:
    gains, texts = [], []
    for rows in sorted({r["rows"] for r in steps if r["what"] == what}):
        ours = _best(steps, what=what, rows=rows, linear="hybrid", weights="bf16")
        copied = _best(steps, what=what, rows=rows, linear="staged")
        if ours is None or copied is None:
            continue
        gains.append(copied["time_s"] / ours["time_s"])
        local = [r for r in steps if r["what"] == what and r["rows"] == rows]
        local = [r for r in local if str(r["linear"]).startswith("resident")]
        resident = min(local, key=lambda r: float(r["time_s"]), default=None)
        beside = f", resident {resident['of_hbm']:.2f} of HBM" if resident else ""
        texts.append(
            f"{rows}: {gains[-1]:.2f}x, {ours['of_link']:.2f} of the link (copied "
            f"{copied['of_link']:.2f}){beside}"
        )
    return aim, [gain > 1 for gain in gains], "; ".join(texts)


def _fewer_bits(steps: Sequence[Row]) -> Judged:
    holds, texts = [], []
    for rows in sorted({r["rows"] for r in steps if r["what"] == "decode"}):
        bf16 = _best(steps, what="decode", rows=rows, linear="hybrid", weights="bf16")
        for weights in ("int8", "int4"):
            less = _best(steps, what="decode", rows=rows, linear="hybrid", weights=weights)
            if bf16 is not None and less is not None:
                gain = bf16["time_s"] / less["time_s"]
                holds.append(gain > 1)
                texts.append(f"{rows}, {weights}: {gain:.2f}x, {less['of_link']:.2f} of the link")
    return "8B decodes faster in int8 and int4 than in bf16", holds, "; ".join(texts)


def _switched(rows: Sequence[Row]) -> Judged:
    aim = (
        "switching between two models of one architecture compiles nothing and copies less than "
        f"{SWITCH_SHARE:.0%} of the weights"
    )
    requests = [r for r in rows if r["status"] == "ok" and r.get("what") == "switch"]
    # From the first request to the second model on, if the device reports its memory.
    later = [r for r in requests if r["request"] >= 2 and "peak_growth_bytes" in r]
    if not later:
        return aim, [], ""
    grown = max(r["peak_growth_bytes"] / r["weight_bytes"] for r in later)
    seen = all(r["peak_before_bytes"] < _BUILT_SHARE * r["weight_bytes"] for r in later)
    compiles = sum(r["compiles"] for r in later)
    own, other = ([r for r in requests if r["request"] == number] for number in (1, 2))
    text = (
        f"{compiles} compiled; peak grew by {grown:.2%} of the weights; "
        f"first token {other[0]['first_token_s'] * 1e3:.0f} ms after the switch, "
        f"{own[0]['first_token_s'] * 1e3:.0f} ms without"
    )
    if not seen:
        text += "; a higher peak before any request could hide a copy"
    return aim, [compiles == 0, grown < SWITCH_SHARE, seen], text


def _same_logits(rows: Sequence[Row]) -> Judged:
    aim = "8B logits with weights in host memory are those with weights in device memory"
    found = [r for r in rows if r["status"] == "ok" and r.get("what") == "logits"]
    holds = [bool(r["finite"]) and r["relative_error"] <= tolerance(r["layers"]) for r in found]
    text = "; ".join(
        f"relative error {r['relative_error']:.2g} of {tolerance(r['layers']):.2g} allowed for "
        f"{r['layers']} layers in bf16"
        for r in found
    )
    return aim, holds, text


def tolerance(layers: int) -> float:
    """Return the allowed relative error of bf16 logits in the norm: random roundings of layers."""
    return float(2.0**-8 * (_ROUNDINGS * layers) ** 0.5)
