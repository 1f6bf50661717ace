"""Calibration of step times on recorded steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from c2c.errors import DataError
from c2c.serving import Prepared
from c2c.transformer import pieces

__all__ = ["StepFit", "fit_steps", "with_costs"]

_LEAST = 4  # steps of a kind that a fit needs
_TRIMS = 3  # rounds that leave out steps 3 standard deviations off


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFit:
    """Costs of a model's steps, seconds.

    A decode step takes a + c x (positions attended to), one a for each row class.

    Attributes:
      rows_s: of a decode step, by row class.
      kv_s: for each position attended to.
      chunk_s: of a call with a chunk, by padded tokens.
      turn_s: more, after another model's step.
      turns: steps after another model's.
      outside_s: mean before a decode step that is no turn.
      turn_outside_s: more, before one that is a turn.
      prompt_outside_s: mean before a step with prompt tokens, without turns.
      load_s: mean of a load from memory; 0: none.
      cold_load_s: mean of a load from disk; 0: none.
      residual: standard deviation of decode steps from the fit, over the mean.
      steps: fitted steps.
    """

    rows_s: Mapping[int, float]
    kv_s: float
    chunk_s: Mapping[int, float]
    turn_s: float
    turns: int
    outside_s: float
    turn_outside_s: float
    prompt_outside_s: float
    load_s: float
    cold_load_s: float
    residual: float
    steps: int

    def as_dict(self) -> dict[str, Any]:
        """Return the costs as plain data."""
        fields = asdict(self)
        return fields | {name: _named(fields[name]) for name in ("rows_s", "chunk_s")}


def _named(values: Mapping[int, float]) -> dict[str, float]:
    return {str(size): seconds for size, seconds in values.items()}


def fit_steps(tables: Sequence[pa.Table]) -> dict[str, StepFit]:
    """Return each model's step costs, fitted to all runs together."""
    columns = {
        name: np.concatenate([table[name].to_numpy(zero_copy_only=False) for table in tables])
        for name in tables[0].column_names
    }
    loads = columns["number"] < 0
    usual = (columns["again"] == 0) & ~loads  # without repeated steps
    result = {}
    for model in sorted(set(columns["model"].tolist())):
        its = columns["model"] == model
        fit = _fit(model, {name: column[usual & its] for name, column in columns.items()})
        seconds, cold = columns["heard_s"] - columns["begun_s"], columns["is_cold"].astype(bool)
        result[model] = replace(
            fit,
            load_s=_mean(seconds[loads & its & ~cold]),
            cold_load_s=_mean(seconds[loads & its & cold]),
        )
    return result


def _fit(model: str, c: Mapping[str, np.ndarray]) -> StepFit:
    decodes, prompts = c["prompt_tokens"] == 0, c["prompt_tokens"] > 0
    for kind, which in (("decode", decodes), ("prompt", prompts)):
        if which.sum() < _LEAST:
            raise DataError(
                f"steps of {model}", f"{which.sum()} {kind} steps, expected at least {_LEAST}",
                "Record a run with more requests of this model.",
            )  # fmt: skip
    seconds = c["seconds"] + c["host_s"]
    turns = c["is_turn"].astype(bool)
    classes = sorted(set(c["rows"][decodes].tolist()))
    columns = [(c["rows"][decodes] == r).astype(float) for r in classes]
    told_apart = min((decodes & turns).sum(), (decodes & ~turns).sum()) >= _LEAST
    columns += [told_apart * turns[decodes], c["kv_tokens"][decodes].astype(float)]
    fit, residual = _above_zero(np.stack(columns, axis=1), seconds[decodes], len(classes))
    chunks = [[chunk for chunk in calls if chunk] for calls in c["calls"][prompts]]
    budgets = sorted({chunk for calls in chunks for chunk in calls})
    y = np.array([[calls.count(budget) for budget in budgets] for calls in chunks], float)
    # Without the decodes' attention and the turn's additional time.
    beside = seconds[prompts] - fit[-1] * c["kv_tokens"][prompts] - fit[-2] * turns[prompts]
    chunk, _ = _least_squares(y, beside)
    if (chunk <= 0).any():  # too few steps of a budget: in proportion to tokens
        share = np.array(budgets, float)
        chunk = share * max(0.0, beside.sum()) / (y @ share).sum()
    outside = c["outside_s"]
    within = decodes & ~turns
    outside_s = _mean(outside[within if within.any() else decodes])
    turn_outside_s = max(0.0, _mean(outside[decodes & turns]) - outside_s)
    return StepFit(
        rows_s={int(r): float(a) for r, a in zip(classes, fit[:-2], strict=True)},
        kv_s=float(fit[-1]),
        chunk_s={b: float(s) for b, s in zip(budgets, chunk, strict=True)},
        turn_s=float(fit[-2]),
        turns=int(turns.sum()),
        outside_s=outside_s,
        turn_outside_s=turn_outside_s,
        prompt_outside_s=_mean(outside[prompts] - turn_outside_s * turns[prompts]),
        load_s=0.0,
        cold_load_s=0.0,
        residual=float(residual / max(1e-12, seconds[decodes].mean())),
        steps=len(seconds),
    )


def _least_squares(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    mask = np.ones(len(y), bool)
    for _ in range(_TRIMS):
        fit, *_ = np.linalg.lstsq(x[mask], y[mask], rcond=None)
        off = y - x @ fit
        mask = np.abs(off) <= 3 * max(float(off[mask].std()), 1e-12)
    scale = y.sum() / max(1e-12, float((x @ fit).sum()))  # totals of times must agree
    return fit * scale, float((y - x @ fit * scale)[mask].std())


def _above_zero(x: np.ndarray, y: np.ndarray, first: int) -> tuple[np.ndarray, float]:
    mask = np.array([k < first or bool(x[:, k].any()) for k in range(x.shape[1])])
    while True:
        fit, residual = _least_squares(x[:, mask], y)
        coefficients = np.zeros(x.shape[1])
        coefficients[mask] = fit
        unseen = mask & ((coefficients < 0) | (coefficients[:first] <= 0).any())
        unseen[:first] = False
        if not unseen.any():
            return coefficients, residual
        mask &= ~unseen


def _mean(values: np.ndarray) -> float:
    if not len(values):
        return 0.0
    return float(np.minimum(values, np.quantile(values, 0.98)).mean())


def with_costs(prepared: Prepared, fits: Mapping[str, StepFit], budgets: Sequence[int]) -> Prepared:
    """Return the setup with measured step costs."""
    fleet, costs = prepared.fleet, prepared.fleet.costs
    body, overhead, kv = costs.body_s.copy(), costs.overhead_s.copy(), costs.kv_read_s.copy()
    decode, prompt = costs.decode_s.copy(), costs.prompt_s.copy()
    chunks = np.zeros_like(costs.prefill_attention_s)
    for deployment, row in zip(prepared.setup.deployments, fleet.deployment, strict=True):
        if deployment.name not in fits:
            raise DataError(f"steps of {deployment.name}", "none were recorded")
        fit = fits[deployment.name]
        widest = max(fit.rows_s)
        rows_s = np.zeros(body.shape[1])  # by rows; a call with a chunk includes its rows
        for rows in sorted(fit.rows_s, reverse=True):
            rows_s[: rows + 1] = fit.rows_s[rows]
        prompt_s = np.array([_prompt_s(fit, n, budgets) for n in range(chunks.shape[1])])
        # The loop adds the rows of a step if they are few, and attention always.
        prompt_s[1 : widest + 1] -= fit.rows_s[widest]
        prompt_s[1:] -= fit.kv_s * np.arange(1, len(prompt_s))
        prompt_s[1:] += fit.prompt_outside_s - fit.outside_s
        pairs = slice(int(row.arch) * costs.kinds, (int(row.arch) + 1) * costs.kinds)
        body[pairs] = rows_s[None, :, None]
        chunks[pairs] = np.maximum(prompt_s, 0.0)[None, :]
        overhead[pairs], kv[pairs] = fit.outside_s, fit.kv_s
        decode[pairs] = min(fit.rows_s.values())
        prompt[pairs] = _prompt_s(fit, max(budgets), budgets) / max(budgets)
    nothing = {
        name: np.zeros_like(getattr(costs, name))
        for name in (
            "body_link", "body_hbm", "head_s", "head_link", "head_hbm", "pair_s",
            "decode_attention_s",
        )
    }  # fmt: skip
    measured = costs._replace(
        body_s=body, overhead_s=overhead, kv_read_s=kv, decode_read_s=kv, decode_s=decode,
        prompt_s=prompt,
        prefill_attention_s=chunks, **nothing,
    )  # fmt: skip
    return replace(prepared, fleet=fleet._replace(costs=measured))


def _prompt_s(fit: StepFit, tokens: int, budgets: Sequence[int]) -> float:
    total = 0.0
    for part in pieces(tokens, budgets):
        padded = next(b for b in sorted(budgets) if b >= part)
        # A budget without recorded calls is scaled by tokens from the nearest one.
        nearest = min(fit.chunk_s, key=lambda b: abs(b - padded))
        total += fit.chunk_s[nearest] * padded / nearest
    return total
