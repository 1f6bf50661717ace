"""Fit an engine's host times to results of a benchmark of your own server: `engines/mine.yaml`.

    c2c fit run=[c1.json,c8.json,c32.json] model=llama-3.1-8b chip=h100 engine=vllm to=mydir
    c2c estimate --config-dir mydir engine=mine model=llama-3.1-8b chip=h100 clients=16

Results are those of `vllm bench serve --save-result`, `sglang.bench_serving --output-file`, AIPerf
and GuideLLM, with mean TTFT, TPOT and lengths. The host's seconds of a step and before a request's
first step are fitted; errors are on a held-out third.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from c2c.errors import DataError, SettingError
from c2c.ranges import Count
from experiments.plain_engine import SPREAD, Figures, Group, Load, served
from experiments.plain_settings import run_settings

__all__ = ["FitSettings", "Run", "main", "runs_in"]

FEWEST: Final = 3  # runs: two are fitted, one is held out
FEW_CLIENTS: Final = 8  # clients at most of runs by which the time before a first step is fitted
_FORMATS: Final = "a result of vLLM, SGLang, AIPerf or GuideLLM"


@dataclass
class FitSettings:
    """Settings of the fit, as key=value on the command line.

    Attributes:
      run: file of results, or a list of them.
      model: name of the model, or folder with a config.json.
      chip: name of the chip.
      tp: chips that compute the model together.
      ep: whether each chip has whole experts of a mixture.
      engine: engine of conf/engines whose other values stay.
      precision: as of `c2c estimate`.
      to: folder of settings for engines/<name>.yaml.
      name: name of the new engine.
    """

    run: Any = ""
    model: str = "llama-3.1-8b"
    chip: str = "h100"
    tp: Count = 1
    ep: bool = False
    engine: str = "vllm"
    precision: Any = None
    to: str = "."
    name: str = "mine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A benchmark's run: load, with mean lengths, and mean figures in seconds."""

    load: Load
    measured: Figures

    @property
    def digest(self) -> str:
        """Return a digest of the load, by which runs are held out."""
        return hashlib.sha256(repr(self.load).encode()).hexdigest()


def main(arguments: Sequence[str]) -> int:
    """Fit; return the exit status, 2 for invalid settings."""
    return run_settings(FitSettings, arguments, _run)


def runs_in(path: Path) -> list[Run]:
    """Return the runs of a file of results."""
    if not path.is_file():
        raise SettingError("run", str(path), f"{_FORMATS} (JSON)")
    try:
        text = path.read_text(encoding="utf-8")
        try:
            records = [json.loads(text)]
        except json.JSONDecodeError:  # a line a run
            records = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise DataError(str(path), f"not JSON: {error}") from error
    return [_of(one, str(path)) for data in records for one in _parts(data)]


def _parts(data: Any) -> Iterator[Any]:
    yield from data["benchmarks"] if isinstance(data, dict) and "benchmarks" in data else (data,)


def _of(data: Any, where: str) -> Run:
    if not isinstance(data, Mapping):
        raise DataError(where, f"expected {_FORMATS}")
    if "mean_ttft_ms" in data:
        return _flat(data, where)
    if "time_to_first_token" in data:
        return _aiperf(data, where)
    if "time_to_first_token_ms" in data.get("metrics", {}):
        return _guidellm(data, where)
    raise DataError(where, f"expected {_FORMATS}, found keys {', '.join(list(data)[:6])}")


def _flat(data: Mapping[str, Any], where: str) -> Run:
    requests = _number(data, "completed", where)
    return _made(
        where,
        isl=_number(data, "total_input_tokens", where) / requests,
        osl=_number(data, "total_output_tokens", where) / requests,
        clients=data.get("max_concurrency"), rate=data.get("request_rate"), requests=requests,
        ttft_ms=_number(data, "mean_ttft_ms", where), tpot_ms=_number(data, "mean_tpot_ms", where),
        tokens_s=_number(data, "output_throughput", where),
    )  # fmt: skip


def _aiperf(data: Mapping[str, Any], where: str) -> Run:
    def mean(name: str) -> float:
        return _number(data, name, where, "avg")

    load = (data.get("input_config") or {}).get("loadgen") or {}
    return _made(
        where, isl=mean("input_sequence_length"), osl=mean("output_sequence_length"),
        clients=load.get("concurrency"), rate=load.get("request_rate"),
        requests=mean("request_count"), ttft_ms=mean("time_to_first_token"),
        tpot_ms=mean("inter_token_latency"), tokens_s=mean("output_token_throughput"),
    )  # fmt: skip


def _guidellm(data: Mapping[str, Any], where: str) -> Run:
    metrics = data["metrics"]

    def mean(name: str) -> float:
        return _number(metrics, name, where, "successful", "mean")

    how = (data.get("config") or data.get("args") or {}).get("strategy") or {}
    clients = how.get("streams") or how.get("max_concurrency")
    if not clients and not how.get("rate"):
        clients = max(1, round(mean("request_concurrency")))
    return _made(
        where, isl=mean("prompt_token_count"), osl=mean("output_token_count"), clients=clients,
        rate=how.get("rate"), requests=math.inf, ttft_ms=mean("time_to_first_token_ms"),
        tpot_ms=mean("inter_token_latency_ms"), tokens_s=mean("output_tokens_per_second"),
    )  # fmt: skip


def _number(data: Mapping[str, Any], name: str, where: str, *more: str) -> float:
    value: Any = data.get(name)
    for key in more:
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        field = ".".join((name, *more))
        raise DataError(f"{where}: {field}", f"expected a number above 0, found {value!r}")
    return float(value)


def _made(
    where: str, *, isl: float, osl: float, clients: Any, rate: Any, requests: float,
    ttft_ms: float, tpot_ms: float, tokens_s: float,
) -> Run:  # fmt: skip
    rate_rps = float(rate) if rate not in (None, "inf") else math.inf
    if clients and math.isfinite(rate_rps):
        raise DataError(where, "both a rate and a limit of requests at once: one of them decides")
    if not clients and math.isinf(rate_rps):
        clients = requests
    if osl < 2:
        raise DataError(where, f"{osl:g} output tokens: without a second one there is no TPOT")
    middle = 1.0 - SPREAD / 2.0  # of the lengths that `served` draws
    load = Load(
        isl=max(1, round(isl / middle)), osl=max(2, round(osl / middle)),
        clients=int(clients or 0), rate_rps=0.0 if clients else rate_rps,
    )  # fmt: skip
    figures = Figures(ttft_s=ttft_ms / 1e3, tpot_s=tpot_ms / 1e3, tokens_s=tokens_s)
    return Run(load=load, measured=figures)


def _run(settings: FitSettings) -> None:
    from c2c.cost import load_engine
    from c2c.models import at_precision
    from experiments.names import chip_named, model_named

    names = settings.run if isinstance(settings.run, list) else [settings.run]
    runs = [run for name in names for run in runs_in(Path(str(name)).expanduser())]
    loads = sorted({run.digest for run in runs})
    if len(loads) < FEWEST:
        raise SettingError("run", names, f"at least {FEWEST} runs of unlike loads")
    if not settings.name.isidentifier():
        raise SettingError("name", settings.name, "a word of letters, digits and _")
    spec = model_named(settings.model)
    if settings.precision is not None:
        spec = at_precision(spec, settings.precision)
    group = Group(platform=chip_named(settings.chip), tp=settings.tp, apart=settings.ep)
    bare = replace(load_engine(settings.engine), step_overhead_s=0.0, request_s=0.0)
    holdout = [run for run in runs if loads.index(run.digest) % 3 == 0]
    fitted = [run for run in runs if loads.index(run.digest) % 3]
    figures = [served(group, spec, bare, run.load)[0] for run in fitted]
    step_s = _added_s(
        np.array([f.tpot_s for f in figures]), np.array([r.measured.tpot_s for r in fitted])
    )
    engine = replace(bare, step_overhead_s=step_s)
    few = [r for r in fitted if 0 < r.load.clients <= FEW_CLIENTS] or fitted
    request_s = _added_s(
        np.array([served(group, spec, engine, r.load)[0].ttft_s for r in few]),
        np.array([r.measured.ttft_s for r in few]),
    )
    engine = replace(engine, request_s=request_s)
    errors = {"TTFT": [], "TPOT": [], "output tokens/s": []}  # type: dict[str, list[float]]
    for run in holdout:
        ours = served(group, spec, engine, run.load)[0]
        for name, field in zip(errors, ("ttft_s", "tpot_s", "tokens_s"), strict=True):
            errors[name].append(getattr(ours, field) / getattr(run.measured, field) - 1.0)
    summary = "; ".join(f"{name}: {_said(error)}" for name, error in errors.items())
    path = _write(settings, engine, f"fitted to {len(fitted)} of {len(runs)} runs; {summary}")
    print(f"{path}: a step {1e3 * step_s:.3g} ms, before a request {1e3 * engine.request_s:.3g} ms")
    print(f"errors on {len(holdout)} held-out of {len(runs)} runs: {summary}")
    if step_s == 0.0:
        print("the steps are too slow without any host time: the rest is the cost model's, or not "
              "the server that engine= and precision= say")  # fmt: skip


def _added_s(bare_s: np.ndarray, measured_s: np.ndarray) -> float:
    """Return the seconds, at least 0, of least mean logarithmic error."""
    tried = np.unique(np.maximum(0.0, np.append(measured_s - bare_s, 0.0)))
    losses = [np.mean(np.abs(np.log((bare_s + one) / measured_s))) for one in tried]
    return float(f"{tried[int(np.argmin(losses))]:.3g}")


def _said(errors: Sequence[float]) -> str:
    middle, worst = np.median(np.abs(errors)), np.max(np.abs(errors))
    signed = 100 * np.median(errors)
    return f"median {100 * middle:.0f} %, worst {100 * worst:.0f} %, signed {signed:+.0f} %"


def _write(settings: FitSettings, engine: Any, source: str) -> Path:
    import yaml

    from c2c.atomic import write_text
    from c2c.cost import load_engine

    base = load_engine(settings.engine)
    numbers = (
        "step_overhead_s", "layer_s", "request_s", "memory_share", "chunk_tokens", "max_batch",
    )  # fmt: skip
    data: dict[str, Any] = {"name": base.name, "version": f"{base.version}, {settings.name}"}
    for name in numbers:
        is_own = name in ("step_overhead_s", "request_s")
        value = getattr(engine, name)
        data[name] = {"value": value, "source": source if is_own else f"as {base.label}"}
    data["batch"] = base.batch
    path = Path(settings.to).expanduser() / "engines" / f"{settings.name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, f"# Host times by `c2c fit`.\n{yaml.safe_dump(data, sort_keys=False)}")
    return path
