"""Checks of each part of the restore mechanism."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa

from c2c.ranges import Count, OneOf
from c2c.systems.medusa import (
    KvRecord,
    artefact_path,
    first_match,
    load_artefact,
    stored_kv_bytes,
    write_artefact,
)
from c2c.systems.medusa.owners import Owners
from c2c.systems.program import AllocationId, DeviceFault, Event
from experiments.claims import Result, answer, claim
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.papers.medusa.emulated_restore import (
    PROGRAMS,
    ModelRow,
    Restoring,
    as_row,
    classifier_rows,
    restore_model,
)
from experiments.papers.medusa.models import BATCH_SIZES, MODELS, table_models
from pallas_kernels.repository import RepositoryWarning

__all__ = ["Restores", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restores:
    """Experiment of restores: models of Table 1, and random programs."""

    models: tuple[str, ...]
    validated: tuple[Annotated[int, OneOf(*BATCH_SIZES)], ...]
    programs: Count

    def __post_init__(self) -> None:
        table_models(self.models)


@figure("medusa.fig9", title="MEDUSA, sections 4 to 6: graphs restored", experiment=Restores,
        draw=".drawing.draw_restore", needs=SYSTEMS)  # fmt: skip
def compute(context: Context, experiment: Restores) -> Computed:
    """Return results of restored graphs, and classifiers' errors."""
    models = table_models(experiment.models)
    whole = len(models) + len(PROGRAMS)
    restores: dict[str, Restoring] = {}
    rows: list[ModelRow] = []
    for k, model in enumerate(models):
        restores[model.row], row = restore_model(model, validated=experiment.validated)
        rows.append(row)
        _tell(context.progress, k + 1, whole)
    classifiers = classifier_rows(experiment.programs, context.seeds[0])
    _tell(context.progress, whole, whole)
    shown = restores[models[0].row]
    restored, nodes = sum(r.restored for r in rows), sum(r.nodes for r in rows)
    wrong = {
        name: 100 * max(r["wrong_share"] for r in classifiers if r["classifier"] == name)
        for name in ("paper", "differential")
    }
    assumptions = (
        f"Graphs are decode steps at {len(BATCH_SIZES)} batch sizes with the node counts of Table "
        "1, an input.",
        "Two emulated processes capture the graphs, and a third restores them at other addresses.",
        f"Batch sizes {', '.join(map(str, experiment.validated))} ran in both on three random "
        "inputs.",
        "Plain programs pass every address in a parameter of its own.",
        "The other programs have 8-byte integers equal to addresses of live buffers, or structs "
        "and tensor maps.",
        "The PTX classifier patches the parameters that PTX declares as pointers.",
        "Our classifier, differential, compares two captures.",
    )
    results = [*_rules(shown, rows, classifiers)]
    if len(models) == len(MODELS):
        results.append(
            _result("abstract.graph_nodes_total", sum(r.restored for r in rows), "Sizes go in.")
        )
        results.append(_result("abstract.models", len(rows), "Table 1's."))
    return Computed(
        tables={
            "models": pa.Table.from_pylist([as_row(r) for r in rows]),
            "classifiers": pa.Table.from_pylist(classifiers),
        },
        results=tuple(results),
        finding=(
            f"{restored:,} of {nodes:,} graph nodes are restored; the paper's classifier of "
            f"parameters gets up to {wrong['paper']:.0f} % of random programs wrong, ours "
            f"{wrong['differential']:.0f} %"
        ),
        caption=(
            f"Share of {experiment.programs} random programs of a kind in which a classifier takes "
            "a number for an address or the reverse, and share that it refuses."
        ),
        assumptions=assumptions,
    )


def _tell(progress: Callable[[float, float], None] | None, done: int, whole: int) -> None:
    if progress is not None:
        progress(done, whole)


def _rules(
    shown: Restoring, rows: Sequence[ModelRow], classifiers: Sequence[dict[str, Any]]
) -> Iterator[Result]:
    artefact, device = shown.artefact, shown.process.device
    wrong = {(r["classifier"], r["programs"]): r["wrong_words"] for r in classifiers}
    is_whole = all(r.restored == r.nodes and not r.refused for r in rows)
    patches = [p for g in artefact.graphs for n in g.nodes for p in n.patches]
    nodes = [n for g in artefact.graphs for n in g.nodes]
    widths = {len(n.parameters[p.parameter]) for n in nodes for p in n.patches}
    constants = {
        len(p) for n in nodes for k, p in enumerate(n.parameters)
        if k not in {patch.parameter for patch in n.patches}
    }  # fmt: skip
    late = {k for k, s in enumerate(artefact.steps) if k >= artefact.begin}
    begun = {artefact.steps[k].allocation for k in range(artefact.begin)}
    sources = {kernel.source for kernel in artefact.kernels}
    yield _result("sec2.batch_sizes", rows[0].batch_sizes, "As many graphs were restored.")
    yield _result("sec2.serial_capture", _captures(device), "A second capture is refused.")
    yield _result("sec3.offline_key", _offline_runs(shown), "A second start finds the artefact.")
    yield _result("sec4.pointer_bytes", min(widths), "Of parameters with an address.")
    yield _result("sec4.constant_bytes", min(constants), "The smallest that has none.")
    yield _said("sec4.pointer_heuristic", wrong["paper", "plain"] == 0,
                "Right on plain programs; wrong on integers that look like addresses.")  # fmt: skip
    yield _said("sec4.validation", is_whole and all(r.validated for r in rows),
                "Bitwise, three random inputs.")  # fmt: skip
    yield _said("sec41.index_rule", bool(patches) and is_whole, "As (allocation, offset).")
    latest, first = _aliased()
    yield _said("sec41.backward_match", latest == 1, "By an index of live intervals.")
    yield _result(
        "sec41.false_positive",
        {
            "allocs": claim("medusa.sec41.false_positive").value["allocs"],
            "correct": "i+1" if latest == 1 else "i",
            "wrong": "i" if first == 0 else "i+1",
        },
        "Backward match against first match.",
    )
    frees = any(not artefact.steps[k].nbytes for k in late)
    yield _said("sec42.replay", frees and is_whole, "Allocations and frees.")
    yield _said("sec43.skip_params", not begun & set(artefact.contents), "Weights, KV cache.")
    freed = {artefact.steps[k].allocation for k in late if not artefact.steps[k].nbytes}
    yield _said("sec43.skip_temps", not freed & set(artefact.contents), "Freed in the capture.")
    yield _said("sec5.address_chain", "symbol" in sources and is_whole, "Emulated libraries.")
    yield _said("sec5.module_chain", "module" in sources and is_whole, "Emulated libraries.")
    layers = next(m for m in MODELS if m.row == "llama2_13b").load().layers
    yield _result("sec52.llama13b_layers", layers, "From its public configuration.")
    yield _result("sec52.first_layer_share", 1 / layers, "")
    yield _said("sec52.first_layer_trigger", is_whole, "Kernels outside the layers too.")
    yield _said("sec6.kv_materialise", _keeps_kv(device), "With a check of what is free.")
    yield _result("fig9.graphs_analysed", rows[0].batch_sizes, "")


def _said(name: str, holds: bool, note: str) -> Result:
    value = claim(f"medusa.{name}").value
    return _result(name, value if holds else dict.fromkeys(value, "no"), note)


def _captures(device: Any) -> int:
    device.begin_capture()
    count = 1
    try:
        device.begin_capture()
        count += 1
    except DeviceFault:
        pass
    device.end_capture()
    return count


def _offline_runs(shown: Restoring) -> int:
    runs = 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            if load_artefact(Path(folder), shown.artefact.key) is None:
                runs += 1
                write_artefact(artefact_path(Path(folder), shown.artefact.key), shown.artefact)
    return runs


def _aliased() -> tuple[int, int | None]:
    names = [AllocationId("main", "", k) for k in range(2)]
    events = [
        Event("main", names[0], 512, 4096),
        Event("main", names[0], 0, 4096),
        Event("main", names[1], 512, 4096),
    ]
    owners = Owners({name: k for k, name in enumerate(names)})
    for event in events:
        owners.take(event)
    latest = owners.latest(4096)
    return -1 if latest is None else latest[0], first_match(events, 4096)


def _keeps_kv(device: Any) -> bool:
    free = device.free_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepositoryWarning)  # the second call warns
        same, more = (
            stored_kv_bytes(KvRecord(least, 0), device, 0, 0.9) for least in (free, free + 1)
        )
    return same is not None and more is None


def _result(name: str, ours: Any, note: str, sample: Any = "in-sample") -> Result:
    claim_id = f"medusa.{name}"
    return answer(claim_id, ours, note, sample=sample)
