"""Start of the serving processes from settings."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from c2c.config import load
from c2c.engine import Engine, EngineSettings, find_models, run_in_loop, settle_memory
from c2c.engine.catalog import Entry
from c2c.engine.log import log_to_stderr
from c2c.errors import DataError, SettingError
from c2c.runs import progress_bar
from experiments.serving.fronts import begin_front, end_front, free_port, until_ready
from experiments.serving.laid_out import laid_out
from experiments.serving.record import write_record
from experiments.serving.settings import (
    Settings,
    gpus_of,
    overrides_of,
    register,
    settings_of,
    with_context,
)

__all__ = ["serve"]

_AT_ONCE = 64  # choices of one request under way, so that other requests come in between
_FRONT_S = 10.0  # a front that ends sooner is not replaced: the next one would end, too


def serve(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    register()
    settings = settings_of(load(overrides_of(arguments), "serve"))
    log_to_stderr()
    if settings.out is not None and settings.out.exists() and any(settings.out.iterdir()):
        raise SettingError("out", str(settings.out), "a new or empty folder")
    if settings.out is not None:
        settings.out.mkdir(parents=True, exist_ok=True)  # refuse an unusable folder early
    return run_in_loop(_serve(settings))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def _serve(settings: Settings) -> int:
    if settings.catalog is None:
        from c2c.transformer.weights.default_checkpoint import default_checkpoint

        catalog = default_checkpoint()
    else:
        catalog = settings.catalog
    entries = find_models(catalog, _say)
    settings = with_context(settings, max(entry.context for entry in entries) or 2)
    options = _over_devices(settings, entries)
    for line in options.system.layout.notes if options.system.layout else ():
        _say(line)
    engine = Engine(entries, options)
    stop_event = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop_event.set)
    front: subprocess.Popen[bytes] | None = None
    try:
        stopping = asyncio.create_task(stop_event.wait())
        await engine.listen()
        port = settings.port or free_port(settings.host)
        begin = partial(
            begin_front, "c2c.engine.front", engine.socket, settings.host, port, settings.choices,
            min(_AT_ONCE, settings.engine.max_open),
            "checkpoint" if settings.has_own_sampling else "neutral", *settings.origins,
            key=settings.key,
        )  # fmt: skip
        front = begin()  # early, as it reports the start's progress
        url = f"http://{settings.host}:{port}"
        with _progress() as progress:
            starting = asyncio.create_task(engine.start(_say, progress))
            while not (starting.done() or stop_event.is_set() or front.poll() is not None):
                await asyncio.wait(
                    [starting, stopping], timeout=0.2, return_when=asyncio.FIRST_COMPLETED
                )
        if not starting.done():
            starting.cancel()
            if stop_event.is_set():
                return 0
            raise DataError("front", "did not start", "Its last output is above.")
        await starting
        await until_ready(front, url)
        failed = {info.name: info.failed for info in engine.models() if info.failed}
        for name, why in failed.items():
            _say(f"{name} is not served: {why}")
        settle_memory()
        _say(f"{len(entries) - len(failed)} models at {url}/v1 (page: {url}/)")
        begun_s = time.monotonic()
        while not stop_event.is_set() and engine.failure is None:
            if front.poll() is not None:
                if time.monotonic() - begun_s < _FRONT_S:
                    raise DataError("front", f"ended with status {front.returncode}")
                _say(f"the front ended with status {front.returncode}: another one begins")
                front, begun_s = begin(), time.monotonic()
            await asyncio.wait([stopping], timeout=0.2)
        if engine.failure is not None:
            raise engine.failure
        _say("stopping")
        await engine.drain(settings.drain_s)
        await asyncio.sleep(0.1)  # the last answers reach the clients
        if settings.out is not None:
            write_record(settings.out, settings.given, engine)
            _say(f"record: {settings.out}")
    finally:
        if front is not None:
            await end_front(front)
        await engine.close()
    return 0


def _over_devices(settings: Settings, entries: Sequence[Entry]) -> EngineSettings:
    engine = laid_out(settings.given, entries, settings.engine)
    if (count := engine.options.devices) == 1:
        return engine
    gpus = gpus_of(settings.given["devices"], engine.options.workers, per_worker=count)
    return replace(engine, gpus=gpus)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    with contextlib.ExitStack() as shown:
        bars: list[Callable[[float], None]] = []

        def progress(ready: int, total: int) -> None:
            if not bars:
                bars.append(shown.enter_context(progress_bar("compiling", total)))
            bars[0](ready)

        yield progress
