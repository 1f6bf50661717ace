"""Models of a worker, and the execution of plans."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from msgspec import structs

from c2c.engine.constraint import Constraint, Grammars
from c2c.engine.messages import (
    Admitted,
    Item,
    Load,
    Opening,
    Prompted,
    Relaid,
    Run,
    Scored,
    Setup,
    Stepped,
    Submit,
)
from c2c.errors import DataError, SettingError
from c2c.transformer import (
    KvPool,
    Lease,
    Model,
    Runner,
    Sampling,
    Shapes,
    Step,
    load,
    pieces,
)
from c2c.transformer.executables import Executables
from c2c.transformer.running.sampling_stages import Score
from c2c.transformer.weights.checkpoint import DTYPES
from pallas_kernels.host_memory import HostMemoryError

__all__ = ["Residents"]

_jax: Any = jax  # parts of it are untyped
_REFUSED = (DataError, SettingError, HostMemoryError)


class Residents:
    """Instances that share a device's KV pool."""

    def __init__(self, setup: Setup, opening: Callable[[Opening], None] = lambda _: None) -> None:
        """Allocate the pool; load and compile the models of `setup.opens`.

        A model that cannot be served goes into `failed`.
        """
        self.failed: dict[str, str] = {}
        self._setup = setup
        self._items = {item.name: item for item in setup.models}
        self._models: dict[str, Model] = {}
        self._executables = _executables(setup.executables)
        self._shapes = Shapes(rows=setup.rows, budgets=setup.budgets, width=setup.width)
        self._runners: dict[int, Runner] = {}
        self._models_of: dict[int, str] = {}  # by instance
        self._grammars: dict[str, Grammars] = {}  # by model, made at its first constrained request
        self._leases: dict[str, Lease] = {}  # by model: kept blocks outlive an instance
        self._pool = self._open_pool()
        passing = [i.name for i in setup.models if not i.is_kept and setup.opens == "all"]
        names = [i.name for i in setup.models if i.is_kept and setup.opens != "none"]
        self._opening, self._telling = opening, threading.Lock()
        self._left = dict.fromkeys([*passing, *names], len(self._shapes.calls))
        for name in passing:  # one at a time, as memory has no room for more
            self._open_all([name])
            self.drop(name)
            path = self._items[name].pool
            if setup.owns_files and path is not None:
                Path(path).unlink(missing_ok=True)
        self._open_all(names)

    def _open_pool(self) -> KvPool:
        return self._new_pool()

    def _open_pools(self) -> tuple[KvPool, ...]:
        devices, count = jax.devices(), self._setup.devices
        if len(devices) < count:
            raise SettingError("devices", len(devices), f"at least {count} for a worker")
        pools = tuple(map(self._new_pool, devices[:count]))
        # Placing an array on a device for the first time takes longer than a step.
        _jax.block_until_ready([jax.device_put(np.zeros(1), pool.device) for pool in pools])
        return pools

    def _new_pool(self, device: Any = None) -> KvPool:
        setup = self._setup
        return KvPool(
            setup.superblocks, setup.superblock, dtype=DTYPES[setup.dtype],
            executables=self._executables, device=device,
        )  # fmt: skip

    def _tell(self, name: str, shapes: int) -> None:
        with self._telling:
            self._left[name] -= min(shapes, self._left[name])
            total = len(self._left) * len(self._shapes.calls)
            ready = total - sum(self._left.values())
            self._opening(Opening(model=name, ready=ready, of=total, compiled=self.compiled))

    def _open_all(self, names: Sequence[str]) -> None:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            ready: dict[str, Future[Model]] = {}
            for name in names:
                self._tell(name, 0)
                try:
                    loaded, done = (
                        self._loaded(name, self._executables),
                        partial(self._tell, name, 1),
                    )
                    ready[name] = pool.submit(self._compiled, loaded, done)
                except _REFUSED as error:
                    self.failed[name] = str(error)
            for name, model in ready.items():
                try:
                    self._touch(model.result())
                except _REFUSED as error:
                    self.failed[name] = str(error)
                else:
                    self._models[name] = model.result()
        for name in names:  # includes failed models and those without ahead-of-time compilation
            self._tell(name, len(self._shapes.calls))

    def _open(self, name: str) -> Model:
        if name not in self._models:
            self._models[name] = self._loaded(name, self._executables)
        return self._models[name]

    def admit(self, item: Item, report: Callable[[Admitted], None]) -> None:
        """Load and compile a further model in a thread."""
        self._items[item.name] = item

        def ready() -> None:
            failed = ""
            try:
                # A store of its own: the others' steps do not count its compilations.
                executables = _executables(self._setup.executables)
                model = self._compiled(self._loaded(item.name, executables), lambda: None)
            except Exception as error:  # noqa: BLE001 (the others are served)
                failed = str(error) if isinstance(error, _REFUSED) else repr(error)
            else:
                self._models[item.name] = model
            report(Admitted(model=item.name, failed=failed))

        threading.Thread(target=ready, daemon=True).start()

    def _loaded(self, name: str, executables: Executables | None) -> Model:
        item = self._items[name]
        return load(
            Path(item.path),
            self._setup.dtype,
            linear=self._setup.linear,
            pool=item.pool,
            progress=False,
            executables=executables,
        )

    def _compiled(self, model: Model, done: Callable[[], None]) -> Model:
        if model.executables is not None:
            self._warm(self._made(model), masks=model.tokenizer is not None, done=done)
        return model

    def _warm(self, runner: Runner, *, masks: bool, done: Callable[[], None]) -> None:
        runner.warm(masks=masks, done=done)

    def _touch(self, model: Model) -> None:
        runner = self._made(model)
        runner.submit(0, [0], new=2, sampling=Sampling())
        for step in (Step(fill=(0, 1)), Step(decode=(0,))):
            if runner.finish(runner.start(step)).tokens[0][2] == "not_finite":
                raise DataError(model.spec.name, "its logits are NaN or infinite")

    def _made(self, model: Model, lease: Lease | None = None) -> Runner:
        return Runner(model.executor(self._pool, lease), self._shapes)

    @property
    def compiled(self) -> int:
        """Number of executables that this process compiled."""
        return 0 if self._executables is None else self._executables.compiled

    @property
    def loaded(self) -> int:
        """Number of executables loaded from the store."""
        return 0 if self._executables is None else self._executables.loaded

    def load(self, load: Load) -> None:
        """Make a model runnable as an instance."""
        model = self._open(load.model)
        if load.model not in self._leases:
            self._leases[load.model] = self._pool.lease(model.spec)
        runner = self._made(model, self._leases[load.model])
        self._runners[load.instance], self._models_of[load.instance] = runner, load.model

    def drop(self, model: str) -> None:
        """Unmap a model's weights."""
        self._grammars.pop(model, None)
        if self._models.pop(model, None) is not None:
            gc.collect()  # a model has reference cycles

    def unload(self, instance: int) -> None:
        """Free an instance and its requests' memory."""
        runner = self._runners.pop(instance, None)
        if runner is not None:
            for request in runner.requests:
                runner.cancel(request)

    def free(self, requests: tuple[int, ...]) -> None:
        """Free the memory of requests."""
        for runner in self._runners.values():
            for request in set(requests) & set(runner.requests):
                runner.cancel(request)

    def forget(self, keys: tuple[int, ...]) -> None:
        """Evict prompt blocks from the prefix cache."""
        self._pool.forget(keys)

    def run(self, run: Run, is_interrupted: Callable[[], bool]) -> Iterator[Stepped]:
        """Compute and report a plan's steps until one ends a request, or an interrupt."""
        runner = self._runners[run.instance]
        for submit in run.submits:
            self._submit(run.instance, submit)
        hits: list[tuple[int, int]] = []
        calls = self._calls(runner, run, hits)
        following = [Step(decode=_fed(run))]
        for number in range(run.steps):
            goes_on = number + 1 < run.steps and not is_interrupted()
            ahead = following[0] if goes_on and self._setup.ahead else None
            stepped = self._step(runner, run, number, calls, ahead, hits)
            is_last = number + 1 == run.steps or any(why for *_, why in stepped.tokens)
            if is_last or is_interrupted():
                yield structs.replace(stepped, is_last=True)
                return
            yield stepped
            calls, hits = iter(following), []

    def _submit(self, instance: int, submit: Submit) -> None:
        self._runners[instance].submit(
            submit.request,
            submit.ids,
            new=submit.new,
            drawn=submit.drawn,
            stop=submit.stop,
            sampling=Sampling(**submit.sampling()),
            least=submit.least,
            scores=submit.scores,
            prompt_scores=submit.prompt_scores,
            embeds=submit.embeds,
            constraint=self._constraint(instance, submit) if submit.grammar else None,
            keys=submit.blocks,
        )

    def _constraint(self, instance: int, submit: Submit) -> Constraint:
        model = self._models_of[instance]
        if model not in self._grammars:
            opened = self._models[model]
            assert opened.tokenizer is not None  # the front refuses grammars of such models
            self._grammars[model] = Grammars(opened.tokenizer, opened.spec.vocab)
        drawn = submit.ids[len(submit.ids) - submit.drawn :]
        return self._grammars[model].begin(submit.grammar, drawn)

    def _embedding(self, instance: int, x: np.ndarray) -> bytes:
        model = self._models[self._models_of[instance]]
        x = (model.spec.norm_offset + np.asarray(model.params.final_norm, np.float32)) * x
        result: bytes = (x / np.linalg.norm(x)).astype("<f4").tobytes()  # its mean square cancels
        return result

    def advance(self) -> Relaid | None:
        """Do a piece of a change; return the totals at its end."""
        return None

    @property
    def is_changing(self) -> bool:
        """True if `advance` has something to do."""
        return False

    def _calls(self, runner: Runner, run: Run, hits: list[tuple[int, int]]) -> Iterator[Step]:
        decodes = run.decodes
        for fill in run.fills:
            there = runner.reuse(fill.request, fill.tokens)
            if there:
                hits.append((fill.request, there))
            for tokens in pieces(fill.tokens - there, self._shapes.budgets):
                yield Step(fill=(fill.request, tokens), decode=decodes)
                decodes = ()
        if not run.fills:
            yield Step(decode=decodes)

    def _step(
        self,
        runner: Runner,
        run: Run,
        number: int,
        calls: Iterator[Step],
        ahead: Step | None,
        hits: list[tuple[int, int]],
    ) -> Stepped:
        begun_s, compiled = time.perf_counter(), _count(runner)
        tokens: list[tuple[int, int, str | None]] = []
        scores: list[Scored] = []
        prompts: list[Prompted] = []
        seconds, kv, shapes = 0.0, 0, []
        call = next(calls, None)
        while call is not None:
            kv += runner.attended(call)
            shapes.append(runner.shape_of(call))
            ticket = runner.start(call)
            call = next(calls, None)  # finds blocks of the calls started so far
            if ahead is not None and call is None:
                runner.run_ahead(ahead)
            result = runner.finish(ticket)
            tokens += result.tokens
            seconds += result.seconds
            for request, score in result.scores.items():
                x = result.hidden.get(request)
                more = b"" if x is None else self._embedding(run.instance, x)
                scores.append(_scored(request, score, more))
            prompts += [
                Prompted(
                    request=request,
                    first=first,
                    scores=tuple(_scored(request, s) for s in prompt_scores),
                )
                for request, first, prompt_scores in result.prompts
            ]
        return Stepped(
            plan=run.plan,
            number=number,
            is_last=False,
            tokens=tuple(tokens),
            seconds=seconds,
            host_s=time.perf_counter() - begun_s - seconds,
            calls=tuple(shapes),
            kv_tokens=kv,
            compiled=_count(runner) - compiled,
            scores=tuple(scores),
            prompts=tuple(prompts),
            found=tuple(hits),
        )


def _executables(where: str | None) -> Executables | None:
    if where is None:
        return None
    return Executables(None if where == "auto" else where, strict=False)


def _count(runner: Runner) -> int:
    executables = runner.executor.executables
    return 0 if executables is None else executables.compiled


def _scored(request: int, score: Score, embedding: bytes = b"") -> Scored:
    top = score.top
    return Scored(request=request, logprob=score.logprob, top=top, embedding=embedding)


def _fed(run: Run) -> tuple[int, ...]:
    return (*run.decodes, *dict.fromkeys(fill.request for fill in run.fills))
