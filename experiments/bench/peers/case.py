"""Benchmark case of both simulators: one resident model on one GPU, its requests in one file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv

from c2c.config import build, load
from c2c.policies.chunk import chunk_tokens, largest_chunk
from c2c.serving import ServingSetup
from c2c.workloads import RequestBlock, Workload, concatenate

__all__ = ["CONTEXT", "MODEL", "PLATFORM", "TokenBudget", "read_trace", "serving", "write_trace"]

MODEL: Final = "llama-3-8b"
PLATFORM: Final = "a100_sxm"
CONTEXT: Final = 4096  # Vidur's limit of this model; prompts have at most three quarters of it
LONGEST_PROMPT: Final = 3072
COLUMNS: Final = ("Time", "PromptTokenCount", "CompletionTokenCount")  # names of Vidur's replay
DATE: Final = "2026-01-01"  # Vidur's replay takes the rows of one day


class TokenBudget(NamedTuple):
    """Token budget of a step, decodes included: Sarathi-Serve's chunk size."""

    tokens: int = 512


@chunk_tokens.by(TokenBudget)
def _what_decodes_leave(
    policy: TokenBudget,
    profiled_tokens: int,  # noqa: ARG001 - every policy of a decision is given the same
    backlog_tokens: int,  # noqa: ARG001
    decodes: int,
) -> int:
    return policy.tokens - decodes


@largest_chunk.by(TokenBudget)
def _all_of_it(policy: TokenBudget, candidates: tuple[int, ...]) -> int:  # noqa: ARG001
    return policy.tokens


def serving(chunk: int, max_batch: int) -> ServingSetup:
    """Return the setup: a whole GPU, weights in HBM from the start, no refusals by targets."""
    setup = build(load([
        f"hardware={PLATFORM}", "catalog=dense", f"catalog.models=[{{spec: {MODEL}}}]",
        "workload=deterministic", "workload.requests=1", "system=serverlessllm",
        "system.starts_active=true", f"system.profile.chunks=[{chunk}]",
        f"system.max_batch={max_batch}", "system.check_slo=false",
    ])).serving  # fmt: skip
    return replace(setup, system=replace(setup.system, chunk=TokenBudget(chunk)))


def write_trace(path: Path, *, requests: int, rate_rps: float, seed: int) -> None:
    """Write requests with Poisson arrivals and the generator's lengths, cut to Vidur's limit."""
    made = build(load([
        f"hardware={PLATFORM}", "catalog=dense", f"catalog.models=[{{spec: {MODEL}}}]",
        "workload=poisson", f"workload.requests={requests}", f"workload.rate_rps={rate_rps}",
        f"seed={seed}", "system=serverlessllm", "system.check_slo=false",
    ])).workload  # fmt: skip
    block = concatenate(list(made.blocks()))
    values = (
        block.arrival_s,
        np.minimum(block.prompt_tokens, LONGEST_PROMPT),
        np.minimum(block.output_tokens, CONTEXT - LONGEST_PROMPT),
    )
    columns = {"Date": [DATE] * requests} | dict(zip(COLUMNS, values, strict=True))
    pyarrow.csv.write_csv(pa.table(columns), path)


def read_trace(path: Path) -> Workload:
    """Return the requests of a file of `write_trace`."""
    table = pyarrow.csv.read_csv(path)
    arrival_s, prompt, output = (table[name].to_numpy() for name in COLUMNS)
    block = RequestBlock(
        arrival_s=arrival_s.astype(float),
        model=np.zeros(len(table), np.int32),
        prompt_tokens=prompt.astype(np.int32),
        output_tokens=output.astype(np.int32),
    )
    return Workload((MODEL,), lambda: iter([block]), {"requests": len(table)})
