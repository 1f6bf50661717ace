"""One emulated case: captured by two processes."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from c2c.systems.medusa import (
    Artefact,
    Capture,
    Classifier,
    Graph,
    Refusal,
    Restored,
    analyse,
    make_artefact,
    restore,
    sides,
    validate,
)
from c2c.systems.program import Program
from experiments.papers.medusa.processes import Process, key_of
from experiments.papers.medusa.synthetic import Shape, random_program, with_adversarial_integers

__all__ = ["Case", "Outcome", "judge", "prepare"]

_BATCH = 1


@dataclass(frozen=True, slots=True)
class Case:
    """Two captures of a program, and the true one at third addresses."""

    program: Program
    first: Capture
    second: Capture
    original: Process
    truth: Capture
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A classifier's verdict on a case.

    Attributes:
      words: 8-byte parameter words, compared with an ordinary start's.
      refusals: reasons against the graph.
      is_equal: whether results on random inputs are equal.
    """

    words: int
    wrong: int
    refusals: tuple[Refusal, ...]
    is_equal: bool


def prepare(shape: Shape, *, is_adversarial: bool = True) -> Case:
    """Return a case; `is_adversarial`: with integers equal to live addresses."""
    program = random_program(shape)
    seed = 4 * shape.seed
    if is_adversarial:
        probe = Process({_BATCH: program}, seed + 1)
        draw = random.Random(shape.seed)  # noqa: S311
        program = with_adversarial_integers(program, probe.running.addresses, draw)
    programs = {_BATCH: program}
    original = Process(programs, seed + 1)
    first = original.capture()
    second = Process(programs, seed + 2, has_guards=True).capture()
    truth = Process(programs, seed + 3).capture()
    return Case(program, first, second, original, truth, seed + 3)


def judge(case: Case, classifier: Classifier = "differential", *, runs: bool = True) -> Outcome:
    """Analyse a case, restore it in a third process, compare both."""
    second = case.second if classifier == "differential" else case.first
    analysed = analyse(case.first, second, case.original.device.replace_address, classifier)
    if analysed.refusals:
        return Outcome(0, 0, analysed.refusals, is_equal=False)
    artefact = make_artefact(key_of({_BATCH: case.program}, "synthetic"), case.first, analysed)
    process = Process({_BATCH: case.program}, case.seed)
    restored = restore(artefact, process.recorder, process.triggered())
    words, wrong = _compare(process, restored, case.truth)
    is_equal = runs and not wrong and is_same(case, artefact, process, restored)
    return Outcome(words, wrong, (), is_equal)


def is_same(case: Case, artefact: Artefact, process: Process, restored: Restored) -> bool:
    """Return whether the restored graph's results equal the original's."""
    original = case.original
    one, two = sides(
        case.first, original.functions, original.device, artefact, restored, process.device, _BATCH
    )
    pair = (one, original.device.instantiate(original.graphs[_BATCH]))
    other = (two, process.device.instantiate(restored.graphs[_BATCH]))
    return validate(pair, other, original.regions(_BATCH))


def _compare(process: Process, restored: Restored, truth: Capture) -> tuple[int, int]:
    device, graph = process.device, restored.graphs[_BATCH]
    truth_graph: Graph = truth.graphs[0]
    words = wrong = 0
    for node, want in zip(device.nodes(graph), truth_graph.nodes, strict=True):
        if want.kind == "kernel":
            call = device.kernel_of(node)
            same_name = device.function_name(call.function) == truth.kernels[want.kernel].name
            ours = replace(want, parameters=call.parameters, attributes=call.attributes)
            wrong += not same_name or ours.attributes != want.attributes
        else:
            got = device.copy_of(node) if want.kind == "copy" else device.fill_of(node)
            ours = replace(want, parameters=tuple(v.to_bytes(8, "little") for v in got))
        for a, b in zip(ours.parameters, want.parameters, strict=True):
            words += -(-len(b) // 8)
            wrong += a != b
    return words, wrong + (device.edges(graph) != truth_graph.edges)
