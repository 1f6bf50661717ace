"""A small program, captured twice and analysed, that the tests change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from c2c.systems.medusa import Artefact, Capture, Restored, analyse, make_artefact, restore
from experiments.papers.medusa.processes import Process, key_of
from experiments.papers.medusa.synthetic import Shape, random_program

SEED = 11


@dataclass(frozen=True)
class Made:
    original: Process
    first: Capture
    second: Capture
    artefact: Artefact


@cache
def made(seed: int = 5, launches: int = 14) -> Made:
    programs = {b: random_program(Shape(seed=seed, launches=launches)) for b in (1,)}
    original = Process(programs, 1)
    first = original.capture()
    second = Process(programs, 2, has_guards=True).capture()
    analysed = analyse(first, second, original.device.replace_address)
    assert not analysed.refusals
    return Made(original, first, second, make_artefact(key_of(programs, "small"), first, analysed))


def restored(artefact: Artefact, seed: int = SEED) -> tuple[Process, Restored]:
    process = Process(made().original.programs, seed)
    return process, restore(artefact, process.recorder, process.triggered())
