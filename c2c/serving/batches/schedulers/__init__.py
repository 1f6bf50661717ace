"""Batch schedulers, one a file."""

from c2c.serving.batches.schedulers import (
    one_prompt,
    prompts_alone,
    reserved,
    sglang,
    token_budget,
    vllm_v0,
)

__all__ = ["one_prompt", "prompts_alone", "reserved", "sglang", "token_budget", "vllm_v0"]
