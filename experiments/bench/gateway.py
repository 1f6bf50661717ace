"""Streamed chats through a gateway to two simulated endpoints, one faulty, and without a gateway.

    python -m experiments.bench.gateway requests=200 rate=4

The gateway is LiteLLM's proxy (`make gateway`). Every case has the same requests, with Poisson
arrivals. In all cases but the first they pass through the gateway, which chooses an endpoint,
retries failures and falls back. Writes JSON with provenance to a folder in runs/bench.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, repeat
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.errors import DataError, SettingError
from c2c.runs import RunDir, progress_bar
from experiments.bench.servers.servers import Answer, Engine, Request, streamed
from experiments.bench.servers.traffic import Mix, check_span, send, trace
from experiments.bench.servers.vllm_process import answers
from experiments.benchmark import MeasurementSettings, benchmark
from experiments.children import cpu_seconds
from experiments.serving.fronts import free_port
from experiments.simulated.faults import HEADER

__all__ = ["CASES", "GatewaySettings", "main"]

MODEL: Final = "llama-3-8b"
CASES: Final = {
    "direct": "", "no_fault": "", "status_429": "status=429", "status_503": "status=503",
    "slow": "delay_s=30", "cut": "cut_after=3", "fall_back": "status=503",
}  # fmt: skip
"""Fault of the second endpoint by case. In the last case the gateway has no other endpoint and
falls back to the endpoints of the case without faults."""
_PROXY: Final = Path(".venv-gateway/bin/litellm")
_START_S: Final = 180.0
_COLUMNS: Final = (
    "case", "answered", "failed", "retried", "fell_back", "by_first", "ttft_p50_ms",
    "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "gateway_cpu_s", "load",
)  # fmt: skip


@dataclass
class GatewaySettings(MeasurementSettings):
    """Settings of the benchmark, as key=value on the command line.

    Attributes:
      requests: requests of each case.
      rate: requests a second.
      prompt: words of a request, at least and at most.
      new: tokens of an answer, at least and at most.
      seed: seed of arrivals and lengths.
      retries: retries of a request by the gateway.
      patience_s: seconds to the first token before the gateway retries the request.
      endpoint: settings of experiments.serve for both endpoints.
    """

    requests: int = 100
    rate: float = 4.0
    prompt: list[int] = field(default_factory=lambda: [64, 256])
    new: list[int] = field(default_factory=lambda: [16, 64])
    seed: int = 0
    retries: int = 3
    patience_s: float = 5.0
    endpoint: list[str] = field(
        default_factory=lambda: [
            f"catalog.models=[{{spec: {MODEL}}}]", "hardware=h100_sxm", "system=serverlessllm",
            "system.starts_active=true", "system.check_slo=false",
        ]
    )  # fmt: skip


def _config(settings: GatewaySettings, first: str, second: str) -> dict[str, Any]:
    """Return LiteLLM's settings, with a group of endpoints for each case."""
    shared = {
        "model": f"hosted_vllm/{MODEL}", "api_key": "none",
        "stream_timeout": settings.patience_s,
    }  # fmt: skip
    models = []
    for case, fault in CASES.items():
        faulty = {**shared, "api_base": second, "extra_headers": {HEADER: fault} if fault else {}}
        healthy = [] if case == "fall_back" else [{**shared, "api_base": first}]
        models += [{"model_name": case, "litellm_params": own} for own in (*healthy, faulty)]
    return {
        "model_list": models,
        "general_settings": {"master_key": "os.environ/LITELLM_MASTER_KEY"},
        # Without this it looks for a tokenizer on the hub at each request, and waits.
        "litellm_settings": {"disable_hf_tokenizer_download": True},
        "router_settings": {
            "num_retries": settings.retries, "fallbacks": [{"fall_back": ["no_fault"]}],
        },
    }  # fmt: skip


@contextmanager
def _gateway(config: dict[str, Any], folder: Path) -> Iterator[tuple[str, str, int]]:
    """Run LiteLLM's proxy; yield its address, key and process id."""
    file, log, port = folder / "gateway.yaml", folder / "gateway.log", free_port("127.0.0.1")
    file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    key = f"sk-{secrets.token_hex(16)}"
    own = {"LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as said:
        process = subprocess.Popen(  # noqa: S603 (the locked gateway)
            [_PROXY, "--config", file, "--host", "127.0.0.1", "--port", str(port)],
            env=os.environ | own, stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        end_s = time.monotonic() + _START_S
        while not answers(port, "/health/liveliness"):
            if process.poll() is not None or time.monotonic() > end_s:
                raise DataError("gateway", log.read_text()[-2000:], "It did not start.")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", key, process.pid
    finally:
        process.terminate()
        process.wait(60.0)


def _asker(addresses: Iterator[str], model: str, key: str) -> Callable[[Request], Answer | str]:
    """Return a client that sends a request to the next address and returns answer or error."""

    def ask(request: Request) -> Answer | str:
        body = {
            "model": model, "messages": [{"role": "user", "content": "word " * len(request.ids)}],
            "max_tokens": request.new, "min_tokens": request.new,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        try:
            answer = streamed(next(addresses), "/v1/chat/completions", body, _tokens, key)
        except (DataError, http.client.HTTPException, OSError) as error:
            return f"{type(error).__name__}: {error}"
        if len(answer.tokens) != request.new:
            return f"{len(answer.tokens)} of {request.new} tokens"
        return answer

    return ask


def _tokens(event: Any) -> Sequence[int]:
    """Return the tokens of an event, one a word, as simulated answers have them."""
    if "error" in event:
        raise DataError("stream", str(event["error"]), "An error ended it.")
    texts = [choice["delta"].get("content") or "" for choice in event["choices"]]
    return [0] * len("".join(texts).split())


def _row(case: str, answers: Sequence[Answer | str], first: str, cpu_s: float) -> dict[str, Any]:
    good = [answer for answer in answers if isinstance(answer, Answer)]
    heads = [answer.head for answer in good]
    numbers = ("x-litellm-attempted-retries", "x-litellm-attempted-fallbacks")
    retried, fell = (sum(int(head.get(name, 0)) > 0 for head in heads) for name in numbers)
    ttft_ms = [1e3 * answer.first_s for answer in good] or [np.nan]
    tpot_ms = [
        1e3 * (a.last_s - a.first_s) / (len(a.tokens) - 1) for a in good if len(a.tokens) > 1
    ] or [np.nan]
    by_first = sum(head.get("x-litellm-model-api-base") == first for head in heads)
    values = (
        case, len(good), len(answers) - len(good), retried, fell, by_first,
        *np.percentile(ttft_ms, (50, 99)), *np.percentile(tpot_ms, (50, 99)), cpu_s,
        os.getloadavg()[0],
    )  # fmt: skip
    errors = sorted({answer for answer in answers if isinstance(answer, str)})
    return dict(zip(_COLUMNS, values, strict=True)) | {"errors": errors[:5]}


def _measure(settings: GatewaySettings, run: RunDir, out: Console) -> None:
    mix = Mix(
        models=(MODEL,), zipf=0.0, prompt=(settings.prompt[0], settings.prompt[1]),
        new=(settings.new[0], settings.new[1]), vocab=1024,
    )  # fmt: skip
    requests = trace(mix, settings.requests, settings.rate, settings.seed)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, progress_bar("cases", len(CASES)) as advance:
        folder = Path(name)
        both = [
            Engine("dense", folder / f"{k}.log", ("simulated=true", *settings.endpoint))
            for k in range(2)
        ]
        try:
            for endpoint in both:
                endpoint.start()
            first, second = (endpoint.address for endpoint in both)
            with _gateway(_config(settings, first, second), folder) as (address, key, process):
                for k, case in enumerate(CASES):
                    before_s = cpu_seconds([process])
                    if case == "direct":
                        ask = _asker(cycle([first, second]), MODEL, "none")
                    else:
                        ask = _asker(repeat(address), case, key)
                    ask(replace(requests[0], new=2))  # warm-up: opens connections, reads files
                    answers, _ = send(ask, requests)
                    rows.append(_row(case, answers, first, cpu_seconds([process]) - before_s))
                    advance(k + 1)
        finally:
            for endpoint in both:
                endpoint.stop()
    out.print(_table(settings, rows))
    packages = _PROXY.parents[1].glob("lib/python*/site-packages/litellm-*.dist-info")
    version = next(packages).name.removesuffix(".dist-info")
    run.write_json("gateway", {"gateway": version, "rows": rows})


def _table(settings: GatewaySettings, rows: Sequence[dict[str, Any]]) -> Table:
    title = (
        f"{settings.requests} streamed requests a case at {settings.rate:g}/s, times in ms; back: "
        "fell back to other endpoints; first: answered by the first endpoint"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    shown = [name for name in _COLUMNS if name != "load"]
    heads = ("case", "ok", "failed", "retried", "back", "first", "TTFT p50", "p99", "TPOT p50")
    for head in (*heads, "p99", "CPU s"):
        table.add_column(head, justify="left" if head == "case" else "right", no_wrap=True)
    for row in rows:
        values = (row[name] for name in shown)
        table.add_row(*(f"{v:,.1f}" if isinstance(v, float) else str(v) for v in values))
    return table


def _check(settings: GatewaySettings) -> None:
    check_span("prompt", settings.prompt)
    check_span("new", settings.new)
    for name in ("requests", "rate", "patience_s"):
        if not 0 < getattr(settings, name) < float("inf"):
            raise SettingError(name, getattr(settings, name), "a number above 0")
    if settings.retries < 0:
        raise SettingError("retries", settings.retries, "a whole number from 0")
    if not _PROXY.is_file():
        raise DataError(str(_PROXY), "no such file", "make gateway installs it.")


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that the command line asks for; return the exit status."""
    return benchmark(
        GatewaySettings, arguments, _measure,
        check=_check, packages=("c2c", "experiments"), name="gateway",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
