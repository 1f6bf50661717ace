"""Systems that ask of workers what these do not do: refused before a process starts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from c2c.config import build, load
from c2c.engine import Engine, EngineSettings, Options
from c2c.engine.catalog import Entry
from c2c.engine.fleet import host_weight_bytes
from c2c.errors import SettingError
from c2c.models import load_spec


def engine(*overrides: str) -> Engine:
    serving = build(load(["workload=poisson", *overrides])).serving
    entry = Entry(name="one", path=Path("none"), spec=load_spec("qwen1.5-0.5b"), context=2048)
    return Engine(
        [entry],
        EngineSettings(
            options=Options(pool_bytes=1 << 30),
            system=serving.system,
            constants=serving.constants,
            worker="no_such_module",  # would end before it is ready, with another error
        ),
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["system=aegaeon"],
            r"system.disaggregation.prompt_share=0.375: expected 0: .* sends no KV cache .* "
            r"Set system.disaggregation.prompt_share=0 system.engines.kv_host_bytes=0 "
            r"to serve it live",
        ),
        (
            ["system=mig_resident", "system.disaggregation.prompt_share=0.5"],
            r"system.disaggregation.prompt_share=0.5: expected 0: .*\. Set "
            r"system.disaggregation.prompt_share=0 to serve it live",
        ),
        (
            ["system=aegaeon", "system.disaggregation.prompt_share=0"],
            r"system.engines.kv_host_bytes=.*: expected 0: .* Set "
            r"system.engines.kv_host_bytes=0 to serve it live",
        ),
        (
            ["system.prefix_cache.hbm=true", "system.prefix_cache.host_bytes=1e9"],
            r"system.prefix_cache.host_bytes=1000000000.0: expected 0: a live worker keeps "
            r"prompt blocks only in its pool.* Set system.prefix_cache.host_bytes=0 to serve",
        ),
    ],
)
def test_caches_that_would_leave_a_worker_are_refused(overrides: list[str], message: str) -> None:
    async def start() -> None:
        made = engine(*overrides)
        try:
            await made.start()
        finally:
            await made.close()

    with pytest.raises(SettingError, match=message):
        asyncio.run(start())


@pytest.mark.parametrize("bytes_", [1, 10**6, 10**12])
def test_weights_take_no_more_host_memory_than_they_have_or_are_given(bytes_: int) -> None:
    entry = Entry(name="one", path=Path("none"), spec=load_spec("qwen1.5-0.5b"), context=2048)
    whole = host_weight_bytes([entry], Options())
    given = replace(Options(), weights_bytes=bytes_)
    assert host_weight_bytes([entry], given) == min(whole, bytes_)
