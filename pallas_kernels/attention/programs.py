"""Programs of the configurations in use, for ahead-of-time compilation."""

from __future__ import annotations

import functools

from pallas_kernels.attention.config import (
    choose_decode,
    choose_prefill,
    decode_shared_bytes,
    prefill_shared_bytes,
)
from pallas_kernels.attention.launch import Launch, run_decode, run_prefill
from pallas_kernels.attention.specs import MODEL_HEADS, Decode, Prefill
from pallas_kernels.program import Argument, Program

_OPCODES = frozenset({"HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG"})
_ABSENT = frozenset({"UTMAREDG"})

PAGE = 16  # tokens
CONTEXT = 8192  # tokens of the longest sequence

# (batch, queries, keys): a batch of prompts, a chunk over its past
_PREFILLS = ((4, 2048, 2048), (1, 512, CONTEXT))
_BATCHES = (1, 128)  # sequences that decode together


def programs(sm_count: int) -> tuple[Program, ...]:
    """Return prefill and decode programs for `sm_count` SMs."""
    entries: list[Program] = []
    for model, (heads, kv_heads, dim) in MODEL_HEADS.items():
        for batch, queries, keys in _PREFILLS:
            spec = Prefill(
                batch=batch,
                queries=queries,
                keys=keys,
                heads=heads,
                kv_heads=kv_heads,
                dim=dim,
            )
            entries.append(prefill_program(spec, model))
        entries.extend(
            decode_program(_decode(batch, heads, kv_heads, dim), model, sm_count)
            for batch in _BATCHES
        )
    heads, kv_heads, dim = MODEL_HEADS["llama-3.1-8b"]
    plain = Prefill(
        batch=1,
        queries=1000,
        keys=1000,
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        causal=False,
        dtype="float16",
    )
    entries.append(prefill_program(plain, "ragged, every key, float16"))
    for page in (32, 64, 256):
        spec_of_page = _decode(16, heads, kv_heads, dim, page=page, dtype="float16")
        entries.append(decode_program(spec_of_page, "float16", sm_count))
    return tuple(entries)


def prefill_program(spec: Prefill, label: str) -> Program:
    """Return one prefill shape's program."""
    config = choose_prefill(spec)
    launch = Launch(backend="sm90", causal=spec.causal, prefill=config)
    keys = (spec.batch, spec.keys, spec.kv_heads, spec.dim)
    return Program(
        op="attention",
        name=f"prefill {label} {spec.batch}x{spec.queries} over {spec.keys}",
        function=functools.partial(run_prefill, launch=launch),
        arguments=(
            Argument(shape=(spec.batch, 3), dtype="int32"),
            Argument(shape=(spec.batch, spec.queries, spec.heads, spec.dim), dtype=spec.dtype),
            Argument(shape=keys, dtype=spec.dtype),
            Argument(shape=keys, dtype=spec.dtype),
        ),
        shared_bytes=prefill_shared_bytes(spec, config),
        opcodes=_OPCODES,
        absent=_ABSENT,
    )


def decode_program(spec: Decode, label: str, sm_count: int) -> Program:
    """Return one decode shape's program, with the merge of its splits."""
    config = choose_decode(spec, sm_count=sm_count)
    launch = Launch(backend="sm90", decode=config)
    pool = (spec.pages, spec.page, spec.kv_heads, spec.dim)
    heads = spec.kv_heads * spec.group
    return Program(
        op="attention",
        name=f"decode {label} batch {spec.batch} pages of {spec.page} splits {config.splits}",
        function=functools.partial(run_decode, launch=launch),
        arguments=(
            Argument(shape=(spec.batch, 3), dtype="int32"),
            Argument(shape=(spec.batch, spec.table), dtype="int32"),
            Argument(shape=(spec.batch, heads, spec.dim), dtype=spec.dtype),
            Argument(shape=pool, dtype=spec.dtype),
            Argument(shape=pool, dtype=spec.dtype),
        ),
        shared_bytes=decode_shared_bytes(spec, config),
        opcodes=_OPCODES,
        absent=_ABSENT,
    )


def _decode(
    batch: int, heads: int, kv_heads: int, dim: int, *, page: int = PAGE, dtype: str = "bfloat16"
) -> Decode:
    table = CONTEXT // page
    return Decode(
        batch=batch,
        kv_heads=kv_heads,
        group=heads // kv_heads,
        dim=dim,
        pages=batch * table,
        page=page,
        table=table,
        dtype=dtype,
    )
