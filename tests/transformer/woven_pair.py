"""A hot model on one CPU device, a cold one that serves on another; prints what a test compares.

Run as `python -m tests.transformer.woven_pair HOT COLD STORE` with two CPU devices.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from c2c.transformer import KvPool, Model, Runner, Sampling, Shapes, Step, load, superblock_elements
from c2c.transformer.cache import Pooled
from c2c.transformer.forward import run
from c2c.transformer.pages import PAGE_TOKENS
from c2c.transformer.woven import Tasks, is_away, move_block, woven_decode

SEED, NEW, WIDTH, ROWS, COLD_NEW = 3, 9, 2, 6, 12
LENGTHS = (3, 60, 17, 64, 30, 9)  # some grow into a second block


def prompts() -> list[list[int]]:
    g = np.random.default_rng(SEED)
    return [g.integers(0, 96, length).tolist() for length in LENGTHS]


def answer(runner: Runner, number: int, between: Callable[[], Any]) -> list[int]:
    """Return the cold model's answer to its one prompt."""
    got: list[int] = []
    runner.submit(number, [5, 7, 11], new=COLD_NEW, sampling=Sampling(temperature=0.0))
    step = Step(fill=(number, 3))
    while len(got) < COLD_NEW:
        got += [token for _, token, _ in runner.finish(runner.start(step)).tokens]
        step = Step(decode=(number,))
        between()
    return got


def serve(runner: Runner, tasks: Tasks, over: threading.Event, out: list[list[int]]) -> None:
    """Serve the cold model without pause, and poll between its steps, until the hot one is done."""

    def poll() -> None:
        while tasks.poll():
            pass

    while not over.is_set():
        out.append(answer(runner, len(out), poll))


def padded(values: list[Any], fill: Any) -> list[Any]:
    return [*values, *[fill] * (ROWS - len(values))]


class Hot:
    """Requests of the hot model, all past their prompts."""

    def __init__(self, model: Model, own: KvPool, tasks: Tasks, ratio: float) -> None:
        self.model, self.own, self.tasks = model, own, tasks
        spec = model.spec
        pools = own, tasks.pool
        self.leases = [pool.lease(spec) for pool in pools]
        self.homes = [int(is_away(SEED, number, ratio)) for number in range(len(LENGTHS))]
        self.blocks, self.ids = [], prompts()
        for number, ids in enumerate(self.ids):
            count = -(-(len(ids) + NEW) // PAGE_TOKENS)
            held = self.leases[0].take(count, number)
            table = jax.device_put(self._table(held)[None], own.device)
            tokens = np.zeros(PAGE_TOKENS, np.int32)
            positions = np.full(PAGE_TOKENS, -1, np.int32)
            tokens[: len(ids)], positions[: len(ids)] = ids, np.arange(len(ids))
            pool = own.arrays
            logits, own.arrays = run(
                model.params, tokens, positions, Pooled(k=pool.k, v=pool.v, tables=table), spec,
                linear=model.linear, wanted=np.array([len(ids) - 1], np.int32),
                executables=model.executables,
            )  # fmt: skip
            if self.homes[number]:
                there = self.leases[1].take(count, number)
                for first, to in zip(held, there, strict=True):
                    move_block(*pools, spec, first, to)
                self.leases[0].give(held)
                held = there
            self.blocks.append(held)
            ids.append(int(np.argmax(logits[0])))

    def _table(self, blocks: list[int]) -> np.ndarray:
        return np.array([*blocks, *[-1] * (WIDTH - len(blocks))], np.int32)

    def decode(self) -> None:
        """Add a token to each request; own rows and those away have shapes of their own."""
        spec, model = self.model.spec, self.model
        parts = [[n for n, home in enumerate(self.homes) if home == h] for h in (0, 1)]
        sizes = [ROWS if part else 0 for part in parts]
        positions = [
            np.array(padded([len(self.ids[n]) - 1 for n in part], -1)[:size], np.int32)
            for part, size in zip(parts, sizes, strict=True)
        ]
        none = self._table([])
        tables = [
            np.array(padded([self._table(self.blocks[n]) for n in part], none))[:size]
            for part, size in zip(parts, sizes, strict=True)
        ]
        tokens = [
            t for part, size in zip(parts, sizes, strict=True)
            for t in padded([self.ids[n][-1] for n in part], 0)[:size]
        ]  # fmt: skip
        logits = np.asarray(
            woven_decode(
                model.params, np.array(tokens, np.int32), positions, tables, self.own, spec,
                linear=model.linear, tasks=self.tasks, executables=model.executables,
            )
        )  # fmt: skip
        for part, first in zip(parts, (0, sizes[0]), strict=True):
            for row, number in enumerate(part):
                self.ids[number].append(int(np.argmax(logits[first + row])))

    def decode_alone(self) -> None:
        """Add a token to each request by a step that is not woven."""
        pool = self.own.arrays
        logits, self.own.arrays = run(
            self.model.params,
            np.array([ids[-1] for ids in self.ids], np.int32),
            np.array([len(ids) - 1 for ids in self.ids], np.int32),
            Pooled(k=pool.k, v=pool.v, tables=jax.device_put(
                np.stack(list(map(self._table, self.blocks))), self.own.device
            )),
            self.model.spec, linear=self.model.linear, decode_rows=ROWS,
            wanted=np.arange(ROWS, dtype=np.int32), executables=self.model.executables,
        )  # fmt: skip
        for ids, row in zip(self.ids, np.asarray(logits), strict=True):
            ids.append(int(np.argmax(row)))

    def end(self) -> None:
        for home, blocks in zip(self.homes, self.blocks, strict=True):
            self.leases[home].give(blocks)


def main(hot_checkpoint: str, cold_checkpoint: str, store: str) -> None:
    """Print a JSON object: references, then one for each ratio."""
    devices = jax.devices()
    hot, cold = (
        load(checkpoint, "float32", executables=store, device=device)
        for checkpoint, device in zip((hot_checkpoint, cold_checkpoint), devices, strict=True)
    )
    size = superblock_elements((hot.spec, cold.spec))

    def made(device: Any) -> KvPool:
        return KvPool(12, size, dtype=np.float32, executables=hot.executables, device=device)

    def cold_runner(pool: KvPool) -> Runner:
        return Runner(cold.executor(pool), Shapes(rows=(1,), budgets=(16,), width=1))

    pools = list(map(made, devices))
    plain = Hot(hot, pools[0], Tasks(pools[1], hot.spec), 0.0)
    for _ in range(NEW - 1):
        plain.decode_alone()
    alone = {
        "hot": [ids[n:] for ids, n in zip(plain.ids, LENGTHS, strict=True)],
        "cold": answer(cold_runner(pools[1]), 0, lambda: None),
    }
    print(json.dumps(alone))
    for ratio in (0.0, 0.45, 1.0):
        pools = list(map(made, devices))
        tasks = Tasks(pools[1], hot.spec, executables=hot.executables)
        woven = Hot(hot, pools[0], tasks, ratio)
        runner = cold_runner(pools[1])
        assert hot.executables is not None
        over, answers = threading.Event(), []
        thread = threading.Thread(target=serve, args=(runner, tasks, over, answers), daemon=True)
        thread.start()
        compiled, steps = [], 0
        while len(woven.ids[0]) < LENGTHS[0] + NEW:
            woven.decode()
            steps += 1
            compiled.append(hot.executables.compiled)
        over.set()
        thread.join()
        woven.end()
        found = {
            "homes": woven.homes, "steps": steps, "sent": tasks.sent, "done": tasks.done,
            "hot": [ids[n:] for ids, n in zip(woven.ids, LENGTHS, strict=True)],
            "cold": answers, "free": [len(pool.free) for pool in pools],
            "compiled": compiled[-1] - compiled[0],
        }  # fmt: skip
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
