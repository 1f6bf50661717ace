"""One run of a plan: the engine in a simulated world, then the checks of the laws."""

from __future__ import annotations

import asyncio
import logging
import traceback
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from c2c.config import build, load
from c2c.cost import Constants
from c2c.engine import fleet, residents
from c2c.engine.catalog import Entry
from c2c.engine.front.app import make_app
from c2c.engine.front.link import Link
from c2c.engine.front.served_model import Served
from c2c.engine.scheduler import Engine
from c2c.engine.settings import EngineSettings
from c2c.errors import DataError
from c2c.models import ModelSpec, from_hf_config, weight_bytes
from c2c.serving import SystemSpec
from tests.vopr.asking import ask_for, unpin, wish_for
from tests.vopr.device import Executables, Model
from tests.vopr.laws import Books, check_after, check_left
from tests.vopr.loop import Endless, Loop, Streams, Stuck
from tests.vopr.plan import EOS, MODELS, SYSTEMS, VOCAB, Fault, Plan
from tests.vopr.ports import behind
from tests.vopr.processes import Died, Process, Reader

__all__ = ["Shared", "World", "shared_parts"]

_END_S = 3000.0  # of the world's time, after which all requests must have ended
_START_S = 20.0  # silence of a starting process after which it is killed
_CONTEXT = 400
_FAMILIES = {
    "llama": {"rope_theta": 50000.0},
    "qwen3": {"rope_theta": 1e6, "head_dim": 16, "tie_word_embeddings": True},
    "mixtral": {
        "rope_theta": 1e6, "num_hidden_layers": 2, "num_experts_per_tok": 2, "num_local_experts": 4,
    },
    "qwen2": {"rope_theta": 1e6},
}  # fmt: skip
_CONFIG = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": VOCAB, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
    "torch_dtype": "float32",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """State that all runs of a process share.

    Attributes:
      systems: systems by name and by whether blocks of prompts are kept.
      constants: constants of the cost model.
      specs: specs of all possible models, by name.
      fleets: cache of prepared fleets, by their arguments.
    """

    systems: Mapping[tuple[str, bool], SystemSpec]
    constants: Constants
    specs: Mapping[str, ModelSpec]
    fleets: dict[str, Any] = field(default_factory=dict)


def shared_parts() -> Shared:
    """Return the state that all runs share, read from the configuration."""
    systems, constants = {}, None
    for name, caches in [*((name, False) for name in SYSTEMS), ("engine", True)]:
        more = ["prefix_cache.hbm=true"] if caches else []
        if name == "aegaeon":  # workers do not hand over KV caches
            more = ["disaggregation.prompt_share=0", "engines.kv_host_bytes=0"]
        overrides = [f"system={name}", *(f"system.{each}" for each in more)]
        serving = build(load(["workload=poisson", *overrides])).serving
        systems[name, caches], constants = serving.system, serving.constants
    assert constants is not None
    names = [f"m{k}" for k in range(MODELS)] + ["n0", "n1"]
    families = [*_FAMILIES, "qwen3", "llama"]
    return Shared(
        systems=systems,
        constants=constants,
        specs={
            name: from_hf_config({**_CONFIG, **_FAMILIES[f], "model_type": f}, name)
            for name, f in zip(names, families, strict=True)
        },
    )


class World:
    """Surroundings of an engine; `tests.vopr.ports.Outside` lists its calls to them.

    Attributes:
      plan: plan of the run.
      wrong: broken laws.
      counts: number of events by kind.
      asked: requests of clients, by number.
      poisoned: numbers of requests that end each process that computes them.
      ended_alone: processes that a poisoned request ended alone in its step, by request.
      changed: models that an operator asked to add or remove.
    """

    engine: Engine
    link: Link
    app: Any
    books: Books

    def __init__(self, plan: Plan, shared: Shared, *, keeps_lines: bool = False) -> None:
        """Prepare the run of a plan."""
        self.plan, self._shared, self.specs = plan, shared, shared.specs
        self.draw = Streams(plan.seed)
        self.loop = Loop(self.draw, latency=self._latency, cuts=plan.cuts)
        if keeps_lines:
            self.loop.lines = []
        self.processes: list[Process] = []
        self.readers: list[Reader] = []
        self.current: Process | None = None
        self.files: set[str] = set()
        self.folders = self.memory_kills = 0
        self.wall_s = 0.0
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.asked: dict[int, Any] = {}
        self.poisoned: set[int] = set()
        self.changed: set[str] = set()
        self.ended_alone: Counter[int] = Counter()
        self._pids = 100
        self._paused_s = 0.0  # total time without a turn of the scheduler
        self._is_harmful = False  # True while drawn faults occur

    def broken(self, what: str) -> None:
        """Record a broken law."""
        self.wrong.append(what)

    def number_of(self, model: str) -> int:
        """Return the number that identifies a model's weights."""
        return zlib.crc32(model.encode())

    # Replacements of the engine's surroundings.

    def _latency(self, rng: Any) -> float:
        if rng.random() < 0.1:
            return float(self.plan.slow_link * rng.uniform(1.0, 10.0))
        return float(self.plan.slow_link * rng.uniform(0.2, 1.0))

    def next_pid(self) -> int:
        """Return a number that no other process has."""
        self._pids += 1
        return self._pids

    def _goes_wrong(self, what: str, stream: str, share: float) -> bool:
        """Draw whether a fault occurs; none does outside the harmful part of a run."""
        if not self._is_harmful or not share or self.draw(stream).random() >= share:
            return False
        self.counts[what] += 1
        return True

    def boot_s(self, name: str) -> float | None:
        """Return the seconds that a process takes to start; None: for ever."""
        if self._goes_wrong("boot_hang", "hangs/" + name, self.plan.boot_hangs):
            return None
        return self.draw("boot/" + name).uniform(0.01, 1.0)

    def can_fork(self) -> bool:
        """Return True if the machine can start a process now."""
        return not self._goes_wrong("fork_fails", "fork", self.plan.fork_fails)

    def read(self, reader: Reader, item: dict[str, Any]) -> tuple[float, str]:
        """Return the seconds that a read takes, and its error or ""."""
        del item
        rng = self.draw("read/" + reader.name)
        failed = "bad sector" if rng.random() < self.plan.read_fails else ""
        if rng.random() < self.plan.disk_full:
            failed = failed or "no space left on the device"
        return rng.choice((0.01, 0.1, 1.0)), failed

    def give_way(self) -> None:
        """Yield the core to others: time passes."""
        if self.current is None:
            self.loop.now_s += 5e-5
        else:
            self.current.sleep_until(self.loop.now_s + 1e-4)

    def residents_of(self, setup: Any, told: Any) -> Any:
        """Return the residents of a worker, which poisoned requests end."""
        result = residents.Residents(setup, told)
        real_run = result.run

        def run(run_: Any, is_interrupted: Any) -> Any:
            who = {*run_.decodes, *(fill.request for fill in run_.fills)}
            if self.poisoned & who:
                self.counts["poisoned"] += 1
                self.ended_alone.update(who if len(who) == 1 else ())
                raise Died
            return real_run(run_, is_interrupted)

        result.run = run  # type: ignore[method-assign, assignment]
        return result

    def executables(self, where: str | None) -> Executables:
        """Return the executables of the current process."""
        del where
        assert self.current is not None
        return Executables(_Device(self, self.current))

    def load(self, path: Any, dtype: Any, *, pool: str, executables: Any, **_: Any) -> Model:
        """Load a model: map its weights, or read the checkpoint if there is no file of them."""
        del dtype
        name = Path(path).name
        if pool not in self.files:
            self.counts["late_read"] += self._is_harmful
            self.files.add(pool)
        return Model(number=self.number_of(name), spec=self.specs[name], device_code=executables)

    def _entry(self, name: str) -> Entry:
        return Entry(name=name, path=Path("/sim") / name, spec=self.specs[name], context=_CONTEXT)

    def found(self, path: Path) -> tuple[Entry, ...]:
        """Return the checkpoint of a folder."""
        if self._goes_wrong("bad_checkpoint", "find", self.plan.read_fails):
            raise DataError(str(path), "cannot be read")
        return (self._entry(path.name),)

    def _served(self, infos: Any) -> dict[str, Served]:
        """Return the front's models, without failed ones."""
        return {
            info.name: Served(info=info, tokenizer=None, eos=frozenset(EOS), longest=None)
            for info in infos
            if not info.failed
        }

    def fleet_of(
        self, entries: Any, options: Any, system: SystemSpec, constants: Any, **more: Any
    ) -> Any:
        """Return a prepared fleet from the cache of all runs."""
        names = [(entry.name, str(entry.path)) for entry in entries]
        key = repr((names, options, system.name, system.prefix_cache, more))
        if key not in self._shared.fleets:
            self._shared.fleets[key] = fleet.fleet_of(entries, options, system, constants, **more)
        return self._shared.fleets[key]

    # The run.

    def _new_engine(self) -> Engine:
        plan = self.plan
        entries = [self._entry(f"m{k}") for k in range(plan.models)]
        sizes = sorted(
            int(weight_bytes(replace(self.specs[e.name], dtype_bytes=4))) for e in entries
        )
        most = sum(sizes[-2:]) if len(sizes) > 2 else sizes[-1]
        options = fleet.Options(
            workers=plan.workers, rows=(1, 4), budgets=(16, 64), context=320,
            pool_bytes=plan.pool_bytes, weights_bytes=None if plan.roomy else most,
            ahead=plan.ahead,
        )  # fmt: skip
        settings = EngineSettings(
            options=options, system=self._shared.systems[plan.system, plan.caches],
            constants=self._shared.constants, executables=None, max_open=plan.max_open,
            retries=plan.retries, patience=plan.patience, has_spare=plan.has_spare,
            hang_s=plan.hang_s, start_s=_START_S, busy_poll=plan.busy_poll,
            add_from=Path("/") if plan.adds else None,
        )  # fmt: skip
        return Engine(entries, settings)

    async def _main(self) -> None:
        plan = self.plan
        self.engine, self._is_harmful = self._new_engine(), plan.is_harmful
        try:
            await asyncio.wait_for(self.engine.start(), 600.0)
        except DataError as error:
            if not plan.is_harmful:
                self.broken(f"start: {error}")
            self.counts["no_start"] += 1
            await self._close()
            check_left(self, ())
            return
        self.link = Link(str(self.engine.socket))
        if plan.http:
            self.app = make_app(self.link, key=None, read=self._served)
            await self.app.router.lifespan_context(self.app).__aenter__()
        else:
            await self.link.connect()
        self.books = Books(self)
        self._is_harmful = True
        await self._serve()

    async def _serve(self) -> None:
        plan = self.plan
        tasks = [asyncio.create_task(ask_for(self, k, ask)) for k, ask in enumerate(plan.asks)]
        tasks += [asyncio.create_task(wish_for(self, wish)) for wish in plan.wishes]
        faults = [asyncio.create_task(self._fault(fault)) for fault in plan.faults]
        mine = [*tasks, *faults, asyncio.create_task(unpin(self))]
        if plan.ends_s is not None:
            await asyncio.sleep(plan.ends_s)
            self._is_harmful = False
            await self._close()
        if faults:
            await asyncio.wait(faults)
        _, late = await asyncio.wait(tasks, timeout=_END_S) if tasks else ((), ())
        self._is_harmful = False
        if late:
            self.broken(f"{len(late)} clients without an end after {_END_S} s: {self.state()}")
        if plan.ends_s is None:
            await asyncio.sleep(3 * (plan.hang_s + _START_S))
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                text = "".join(traceback.format_exception(error))
                self.broken(f"a client crashed:\n{text}")
        if plan.ends_s is None:
            check_after(self)
            await self._close()
        check_left(self, mine)
        for task in mine:
            task.cancel()

    async def _close(self) -> None:
        """Drain and close the engine, then wait for its last frames."""
        begun_s, drain_s = self.loop.now_s - self._paused_s, self.plan.drain_s
        if self.engine.failure is None:
            await self.engine.drain(drain_s)
        await self.engine.close()
        took_s = self.loop.now_s - self._paused_s - begun_s
        if took_s > drain_s + 20.0:
            self.broken(f"closing took {took_s:.1f} s")
        await asyncio.sleep(10.0)

    def state(self) -> str:
        """Return the engine's state as text, for messages about broken laws."""
        engine = self.engine
        places = "; ".join(
            f"w{p.device} link={p.link is not None} doing={p.doing and p.doing.plan} "
            f"waits={p.is_waiting} over={p.is_over} vain={p.in_vain} given_up={p.is_quarantined}"
            for p in engine.places
        )
        store = engine._store
        return f"open {list(engine.ledger)} coming {store and store.coming} {places}"

    async def _fault(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        there = [process for process in self.processes if process.status is None]
        who = there[int(fault.who * len(there))] if there else None
        self.loop.note(f"fault {fault.kind} {who and who.name}")
        self.counts[fault.kind] += 1
        if fault.kind in ("kill", "crash", "memory", "freeze", "stall"):
            if who is not None:
                self.counts["losses"] += 1
                await self._harm(fault, who)
        elif fault.kind == "pause":  # the scheduler has no turn; due events then come at once
            self.counts["losses"] += 1
            self.loop.now_s += min(10.0, fault.for_s)
            self._paused_s += min(10.0, fault.for_s)
        elif fault.kind == "reader":
            for reader in self.readers:
                reader.end(-9)
        elif fault.kind == "front":
            self.link.close()
        elif fault.kind == "clock":
            self.wall_s += 1e6 * (2 * fault.who - 1)
        elif fault.kind == "drain":
            self.link.drain(is_on=True)
            await asyncio.sleep(min(2.0, fault.for_s))
            self.link.drain(is_on=False)

    async def _harm(self, fault: Fault, who: Process) -> None:
        if fault.kind == "stall":
            for pipe in self.loop.pipes:
                if pipe.name in (who.name + ">", ">" + who.name):
                    pipe.stalled_s = self.loop.now_s + min(2.0, fault.for_s)
        elif fault.kind == "freeze":
            who.freeze()
            if fault.for_s < 100.0:  # else for good
                await asyncio.sleep(fault.for_s)
                who.thaw()
        else:
            self.memory_kills += fault.kind == "memory"
            who.end(1 if fault.kind == "crash" else -9)

    def run(self) -> None:
        """Run to the end and check the laws; broken ones are in `wrong`."""
        texts = _Texts()
        with behind(self, most_waiting=self.plan.most_waiting, spins=self.plan.spins), texts:
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(self._main())
            except Stuck:
                self.broken(f"no event is left: {self.state()}")
            except Endless:
                self.broken(f"the loop does not end: {self.state()}")
            except Exception:  # noqa: BLE001 (the law is that there is none)
                self.broken(traceback.format_exc())
            finally:
                asyncio.set_event_loop(None)
                for process in self.processes:
                    process.end(-9)
                    process.fibre.cut()
                for task in asyncio.all_tasks(self.loop):
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                self.loop._ready.clear()  # type: ignore[attr-defined]
                self.loop.close()
        for error in self.loop.errors:
            self.broken(f"unhandled: {error}")
        for text in texts.found:
            self.broken(f"log: {text}")


class _Device:
    """Device of one process."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process
        self._busy_s = 0.0  # end of the calls begun so far

    def begin(self, chunk: int) -> float:
        """Begin a call and return the time of its results; the process may crash.

        Raises:
          Died: the process crashes.
        """
        world, name = self._world, self._process.name
        self._process.steps += 1
        is_first = self._process.steps == 1
        if world._goes_wrong("crash_in_step", "crash/" + name, world.plan.crash_a_step) or (
            is_first
            and world._goes_wrong("crash_in_step", "first/" + name, world.plan.dies_at_hello)
        ):
            raise Died
        rng = world.draw("step/" + name)
        seconds = world.plan.step_s * (1 + chunk / 64) * rng.uniform(0.5, 1.5)
        self._busy_s = max(world.loop.now_s, self._busy_s) + seconds
        return self._busy_s

    def wait_until(self, at_s: float) -> None:
        """Make the process wait until a time."""
        self._process.sleep_until(at_s)


class _Texts(logging.Handler):
    """Collects the engine's log during a run: unforeseen errors appear with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._logger = logging.getLogger("c2c.engine")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record that has an exception."""
        if record.exc_info and record.exc_info[1] is not None:
            text = "".join(traceback.format_exception(record.exc_info[1]))
            self.found.append(f"{record.getMessage()}\n{text}")

    def __enter__(self) -> None:
        logger = self._logger
        self._before = logger.level, logger.handlers, logger.propagate
        logger.setLevel(logging.ERROR)
        logger.handlers, logger.propagate = [self], False

    def __exit__(self, *_: object) -> None:
        logger = self._logger
        level, logger.handlers, logger.propagate = self._before
        logger.setLevel(level)
