"""Bodies of requests that hold anything: known fields, unknown ones, and values of every type."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

__all__ = ["ANY", "bodies"]

ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["\ud83d", "\0", "\n", "three", "bare", "w5"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)  # fmt: skip
_ITEMS = st.dictionaries(
    st.sampled_from(["type", "role", "content", "text", "name", "arguments", "id", "output"]),
    st.sampled_from(["text", "user", "function_call", "reasoning", "tool_use"]) | ANY,
)
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.just("user") | ANY, "content": ANY | st.lists(_ITEMS, max_size=3)}
    ),
    max_size=2,
)
_FIELDS = (
    "n", "temperature", "top_p", "top_k", "seed", "stop", "logprobs", "top_logprobs", "min_tokens",
    "ignore_eos", "stream", "stream_options", "repetition_penalty", "return_token_ids", "echo",
    "max_completion_tokens", "tools", "tool_choice", "response_format", "logit_bias",
    "guided_json", "guided_regex", "guided_choice", "grammar", "structured_outputs",
    "parallel_tool_calls", "tokens", "chat_template_kwargs", "frequency_penalty",
    "nothing_that_is_known", "thinking", "format", "n_predict", "stop_sequences", "json_schema",
    "presence_penalty", "min_p", "stop_token_ids", "include_stop_str_in_output", "best_of",
    "documents", "add_generation_prompt", "continue_final_message", "add_special_tokens", "suffix",
)  # fmt: skip


def bodies(*models: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return requests of some models, of few tokens where their number is one."""
    return st.fixed_dictionaries(
        {"model": st.sampled_from(models) | ANY, "max_tokens": st.integers(1, 4) | ANY},
        optional={
            "prompt": st.lists(st.integers(0, 96), max_size=9) | st.just("w5 w6") | ANY,
            "messages": st.just([{"role": "user", "content": "w5"}]) | _MESSAGES | ANY,
            "input": st.just("w5") | st.lists(_ITEMS, max_size=3) | ANY,
            "system": st.just("w5") | st.lists(_ITEMS, max_size=2) | ANY,
            **{name: st.integers(0, 3) | st.booleans() | ANY for name in _FIELDS},
        },
    )
