"""Setup that Vidur has too."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from c2c.config import build, load
from c2c.policies.chunk import chunk_tokens, largest_chunk
from c2c.serving import ServingSetup

__all__ = ["COLUMNS", "CONTEXT", "DATE", "MODEL", "PLATFORM", "TokenBudget", "serving"]

MODEL: Final = "llama-3-8b"
PLATFORM: Final = "a100_sxm"
CONTEXT: Final = 4096  # Vidur's limit of this model
COLUMNS: Final = ("Time", "PromptTokenCount", "CompletionTokenCount")  # names of Vidur's replay
DATE: Final = "2026-01-01"  # Vidur's replay takes the rows of one day


class TokenBudget(NamedTuple):
    """Token budget of a step with decodes: Sarathi-Serve's chunk size."""

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
    """Return the setup: a whole GPU, weights in HBM, no refusals."""
    setup = build(load([
        f"hardware={PLATFORM}", "catalog=dense", f"catalog.models=[{{spec: {MODEL}}}]",
        "workload=deterministic", "workload.requests=1", "system=serverlessllm",
        "system.starts_active=true", f"system.profile.chunks=[{chunk}]",
        f"system.max_batch={max_batch}", "system.check_slo=false",
    ])).serving  # fmt: skip
    return replace(setup, system=replace(setup.system, chunk=TokenBudget(chunk)))
