"""Graphs of ten models restored on the emulated device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from c2c.errors import DataError
from c2c.systems.medusa import (
    CLASSIFIERS,
    Artefact,
    Capture,
    Classifier,
    Restored,
    analyse,
    count_nodes,
    difference,
    make_artefact,
    restore,
    sides,
)
from experiments.papers.medusa.emulation_case import judge, prepare
from experiments.papers.medusa.models import BATCH_SIZES, TableModel, nodes_a_layer, step_program
from experiments.papers.medusa.processes import Process, key_of
from experiments.papers.medusa.synthetic import Shape

__all__ = ["ModelRow", "Restoring", "classifier_rows", "difference_at", "restore_model"]


@dataclass(frozen=True, slots=True)
class Restoring:
    """One model's capture, artefact and restored graphs.

    Attributes:
      original: process that captured.
      process: process that restored.
    """

    original: Process
    capture: Capture
    artefact: Artefact
    process: Process
    restored: Restored


@dataclass(frozen=True, slots=True)
class ModelRow:
    """Costs and results of restored graphs; seconds on this machine."""

    model: str
    batch_sizes: int
    nodes: int
    restored: int
    refused: int
    pointers: int
    permanent_buffers: int
    content_bytes: int
    from_image: int
    from_symbol: int
    from_module: int
    validated: int
    capture_s: float
    analysis_s: float
    restore_s: float


def restore_model(
    model: TableModel, *, validated: Sequence[int] = (1, 256), seed: int = 1
) -> tuple[Restoring, ModelRow]:
    """Capture a model's graphs twice, analyse, restore in a third process."""
    spec = model.load()
    counts = nodes_a_layer(model.nodes, spec.layers)
    programs = {b: step_program(spec, b, n) for b, n in zip(BATCH_SIZES, counts, strict=True)}
    begin = time.perf_counter()
    original = Process(programs, seed)
    first = original.capture()
    captured_s = time.perf_counter() - begin
    second = Process(programs, seed + 1, has_guards=True).capture()
    begin = time.perf_counter()
    analysed = analyse(first, second, original.device.replace_address)
    analysis_s = time.perf_counter() - begin
    artefact = make_artefact(key_of(programs, model.spec), first, analysed)
    process = Process(programs, seed + 2)
    triggered = process.triggered()
    begin = time.perf_counter()
    restored = restore(artefact, process.recorder, triggered)
    restore_s = time.perf_counter() - begin
    restoring = Restoring(original, first, artefact, process, restored)
    for batch in validated:
        if where := difference_at(restoring, batch):
            raise DataError(model.spec, f"the graph of batch size {batch} differs: {where}")
    sources = [artefact.kernels[n.kernel].source for g in artefact.graphs for n in g.nodes]
    return restoring, ModelRow(
        model=model.row,
        batch_sizes=len(restored.graphs),
        nodes=sum(count_nodes(g) for g in first.graphs),
        restored=restored.nodes,
        refused=len(analysed.refusals),
        pointers=sum(len(n.patches) for g in artefact.graphs for n in g.nodes),
        permanent_buffers=len(artefact.permanent),
        content_bytes=artefact.content_bytes,
        from_image=sources.count("image"),
        from_symbol=sources.count("symbol"),
        from_module=sources.count("module"),
        validated=len(validated),
        capture_s=captured_s,
        analysis_s=analysis_s,
        restore_s=restore_s,
    )


def difference_at(case: Restoring, batch: int, *, inputs: int = 3) -> str:
    """Return the first node of a restored graph that differs; empty where results are equal."""
    one, two = sides(
        case.capture, case.original.functions, case.original.device, case.artefact,
        case.restored, case.process.device, batch,
    )  # fmt: skip
    pair = (one, case.original.device.instantiate(case.original.graphs[batch]))
    other = (two, case.process.device.instantiate(case.restored.graphs[batch]))
    return difference(pair, other, case.original.regions(batch), range(inputs))


PROGRAMS: Final = {
    "plain": (False, {"has_structs": False, "has_maps": False, "has_ends": False}),
    "integers like addresses": (
        True,
        {"has_structs": False, "has_maps": False, "has_ends": False},
    ),
    "structs, tensor maps": (True, {}),
}


def classifier_rows(
    cases: int, seed: int = 0, progress: Callable[[int], None] | None = None
) -> list[dict[str, Any]]:
    """Count random programs restored wrongly, by classifier and kind."""
    rows = []
    for kind, (is_adversarial, features) in PROGRAMS.items():
        counted: dict[Classifier, list[int]] = {c: [0, 0, 0, 0] for c in CLASSIFIERS}
        for k in range(cases):
            shape = Shape(seed=seed + k, **features)
            case = prepare(shape, is_adversarial=is_adversarial)
            for classifier, count in counted.items():
                outcome = judge(case, classifier, runs=classifier == "differential")
                count[0] += outcome.words
                count[1] += outcome.wrong
                count[2] += outcome.wrong > 0
                count[3] += bool(outcome.refusals)
            if progress is not None:
                progress(k)
        rows += [
            {
                "classifier": classifier,
                "programs": kind,
                "cases": cases,
                "words": words,
                "wrong_words": wrong,
                "wrong_share": some / cases,
                "refused_share": refused / cases,
            }
            for classifier, (words, wrong, some, refused) in counted.items()
        ]
    return rows


def as_row(row: ModelRow) -> dict[str, Any]:
    """Return a row as JSON values."""
    return asdict(row)
