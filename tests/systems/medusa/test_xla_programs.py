"""XLA's own steps, captured and restored: kernels, slices and constants are what XLA wrote down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from c2c.errors import DataError, SettingError
from c2c.systems.medusa import analyse, make_artefact, restore
from c2c.systems.program import Launch, entries_of
from c2c.systems.program.xla import XlaStep, over_one_memory, read_dump
from experiments.papers.medusa.emulated_restore import Restoring, difference_at
from experiments.papers.medusa.processes import Process, key_of
from tests.systems.program.xla.make import DECODE


def steps() -> dict[int, XlaStep]:
    return {trips: read_dump(DECODE, trips=trips) for trips in (1, 2)}  # one page of cache, and two


def test_steps_of_xla_are_restored_word_for_word() -> None:
    programs = over_one_memory(steps())
    original = Process(programs, 1)
    first = original.capture()
    second = Process(programs, 2, has_guards=True).capture()
    analysed = analyse(first, second, original.device.replace_address)
    assert not analysed.refusals
    artefact = make_artefact(key_of(programs, "xla"), first, analysed)
    assert {kernel.source for kernel in artefact.kernels} == {"image"}
    process = Process(programs, 3)
    restored = restore(artefact, process.recorder)
    assert restored.nodes == sum(len(p.launches) for p in programs.values())
    made = Restoring(original, first, artefact, process, restored)
    assert not difference_at(made, 2, inputs=1)
    wrong = next(n for n in artefact.graphs[1].nodes if n.patches)
    patch = wrong.patches[0]
    shifted = replace(wrong, patches=(patch._replace(offset=patch.offset + 8), *wrong.patches[1:]))
    nodes = tuple(shifted if n is wrong else n for n in artefact.graphs[1].nodes)
    broken = replace(
        artefact, graphs=(artefact.graphs[0], replace(artefact.graphs[1], nodes=nodes))
    )
    process = Process(programs, 4)
    remade = Restoring(original, first, broken, process, restore(broken, process.recorder))
    assert difference_at(remade, 2, inputs=1).startswith("node ")


def test_batch_sizes_share_weights_and_take_temporaries_by_turns() -> None:
    one, two = over_one_memory(steps()).values()
    standing = [b for b in one.buffers if b.first is None]
    assert standing == [b for b in two.buffers if b.first is None]
    assert len(standing) < len(one.buffers)
    integers = sum(kind.startswith("s32") for kind in read_dump(DECODE).input_kinds)
    assert integers == 3  # tokens, positions, tables
    assert len(one.inputs) == len(read_dump(DECODE).program.inputs) - integers
    weights = one.inputs[0]
    assert weights in two.inputs


def test_every_byte_that_a_launch_is_given_is_accessed() -> None:
    step = read_dump(DECODE)
    (program,) = over_one_memory({1: step}).values()
    for launch, reads, writes in zip(program.launches, step.operands, step.results, strict=True):
        if not isinstance(launch, Launch):
            continue
        kernel = program.kernels[launch.kernel]
        (entry,) = [e for e in entries_of(kernel.image) if e.name == kernel.entry]
        read = sum(a.nbytes for a in entry.accesses if a.mode != "w")
        written = sum(a.nbytes for a in entry.accesses if a.mode != "r")
        whole = len(entry.parameters) == len(reads) + len(writes)
        counted = (reads, writes) if whole else (set(reads), set(writes))
        assert (read, written) == tuple(sum(s.nbytes for s in part) for part in counted)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SettingError, match="at least one batch size"):
        over_one_memory({})
    step = read_dump(DECODE)
    numbers = [k for k, x in enumerate(step.program.launches) if isinstance(x, Launch)]
    kernels = [x.kernel for x in step.program.launches if isinstance(x, Launch)]
    again = next(k for k, n in zip(numbers, kernels, strict=True) if kernels.count(n) > 1)
    results = list(step.results)
    results[again] = (replace(results[again][0], nbytes=1),)
    launch = step.program.launches[again]
    assert isinstance(launch, Launch)
    last = launch.arguments[-1]
    place = replace(last.places[0], slice=results[again][0])
    arguments = (*launch.arguments[:-1], replace(last, places=(place,)))
    launches = list(step.program.launches)
    launches[again] = replace(launch, arguments=arguments)
    changed = replace(
        step, results=tuple(results), program=replace(step.program, launches=tuple(launches))
    )
    with pytest.raises(DataError, match="accesses other bytes than before"):
        over_one_memory({1: changed})
