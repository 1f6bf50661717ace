"""Plans of layer copies over a node, with their gain, cost and memory; moves nothing.

    c2c plan cocoserve model=llama-2-13b node=a100_40_pcie_x4
    c2c plan cocoserve model=llama-2-70b over=4 memory_share=1 gamma=0
    c2c plan cocoserve algorithms=[exact] batch=32 write=plan.json
    c2c plan cocoserve plan=plan.json 'operations=[evict 0-9 1]'

Prints each plan's gain by three estimates and by the predicted step, its operations with bytes and
seconds, and each device's free memory. None of the estimates predicts seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.atomic import write_json
from c2c.errors import DataError, SettingError, unknown_name
from c2c.hardware import Node, load_node
from c2c.models import ModelSpec, load_spec, read_json_object
from c2c.ranges import Count, SomeShare, check_fields
from c2c.systems.cocoserve import (
    Devices,
    Estimate,
    Held,
    Operation,
    OperationCosts,
    Part,
    Placement,
    by_runs,
    changes,
    check_room,
    counted_speedup,
    devices_of,
    even_rows,
    exact,
    fastest,
    gamma_of,
    memory_of,
    module_of,
    moved_bytes,
    operation_bytes,
    operation_costs,
    operation_s,
    operations_between,
    printed_speedup,
    room_of,
    scale_up,
    sizes,
    split_speedup,
    step_time,
    transitions,
)
from experiments.plain_settings import Ran, run_settings

__all__ = ["ALGORITHMS", "PlanSettings", "Problem", "main", "planned", "problem_of", "row_of"]

ALGORITHMS: Final[Mapping[str, str]] = {
    "printed": "Algorithm 1 by Eq. 4; candidates lack a copy on the device",
    "spread": "Algorithm 1 by Eq. 4; candidates lack any copy",
    "singly": "Algorithm 1 by counted transitions",
    "runs": "ours, by contiguous runs and counted transitions",
    "exact": "ours, the best by counted transitions",
    "fastest": "ours, the least predicted step, unequal shares of the batch",
}
KINDS: Final = ("replicate", "migrate", "evict")
OPERATION: Final = "replicate|migrate|evict LAYERS DEVICE [MODULE], such as 'replicate 0-9,12 1'"


@dataclass
class PlanSettings:
    """Settings, as key=value on the command line.

    Attributes:
      model: name of a shipped model, or a config.json's path.
      node: node of `conf/node`; its first GPU holds the model.
      over: GPUs that hold the unscaled model, a run of layers each.
      batch: rows of a decode step.
      context: tokens of KV cache of each row.
      memory_share: share of each GPU's memory to use.
      free_gib: GiB of each GPU for the same; []: by memory_share.
      gamma: gamma of Eq. 4; null: the hardware's, with delta 1.
      algorithms: printed, spread, singly, runs, exact, fastest; []: all that apply.
      plan: file of an earlier `write` to start from; null: the unscaled model.
      operations: the plan, each `replicate|migrate|evict LAYERS DEVICE [MODULE]`.
      write: file for the last printed plan.
    """

    model: str = "llama-2-13b"
    node: str = "a100_40_pcie_x4"
    over: int = 1
    batch: Count = 15
    context: Count = 341
    memory_share: SomeShare = 0.9
    free_gib: list[float] = field(default_factory=list)
    gamma: float | None = None
    algorithms: list[str] = field(default_factory=list)
    plan: str | None = None
    operations: list[str] = field(default_factory=list)
    write: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A model, devices, and inputs of plans.

    Attributes:
      context: KV tokens a row.
      capacity: bytes by device.
      gamma: of Eq. 4.
      per_transition: largest of an even split, as a share of an unscaled step.
      unscaled: placement without copies.
      start: first placement.
    """

    spec: ModelSpec
    node: Node
    devices: Devices
    costs: OperationCosts
    batch: int
    context: int
    capacity: Mapping[int, float]
    gamma: float
    per_transition: float
    unscaled: Placement
    start: Placement

    def held(self, placement: Placement) -> dict[int, Held]:
        """Return the bytes that each device holds."""
        return memory_of(placement, self.spec, self.costs, batch=self.batch, context=self.context)

    def free_bytes(self) -> dict[int, float]:
        """Return devices' free bytes after a process's memory."""
        memory = self.held(self.start)
        process = self.costs.process_bytes
        return {
            d: size - (memory[d].total if d in memory else process)
            for d, size in self.capacity.items()
        }

    def room(self) -> dict[int, int]:
        """Return the copies that fit on other devices, with KV."""
        tokens = even_rows(self.batch, 2)[1] * self.context
        others = {d: free for d, free in self.free_bytes().items() if d != self.start.first}
        layer = sizes(self.spec, tokens)["layer"]
        return room_of(others, {}, layer_bytes=layer, layers=self.spec.layers)


def problem_of(settings: PlanSettings) -> Problem:
    """Return the problem that settings describe."""
    check_fields(settings)
    spec, node, batch = load_spec(settings.model), load_node(settings.node), settings.batch
    count = len(node.gpus)
    if settings.free_gib and (len(settings.free_gib) != count or min(settings.free_gib) < 0):
        raise SettingError("free_gib", settings.free_gib, f"{count} numbers from 0, or []")
    for name in settings.algorithms:
        if name not in ALGORITHMS:
            raise unknown_name("algorithms", name, ALGORITHMS)
    if settings.algorithms and settings.operations:
        raise SettingError("algorithms", settings.algorithms, "[] beside operations")
    module_of(spec, "layer")  # raises an error if layers differ
    most = min(len(node.gpus), spec.layers)
    if not 1 <= settings.over <= most:
        raise SettingError("over", settings.over, f"1 to {most} GPUs of {node.name}")
    unscaled = Placement.in_runs(spec.layers, settings.over)
    start = _read(Path(settings.plan), spec) if settings.plan else unscaled
    others = [d for d in range(len(node.gpus)) if d != start.first]
    links = {d: link for d in others if (link := node.link(start.first, d)) is not None}
    if not links:
        raise SettingError("node", settings.node, "GPUs with a link to the first")
    devices = devices_of(spec, node, most_rows=batch)
    share = even_rows(batch, 2)
    alone = step_time(unscaled, devices, batch=batch, context=settings.context)
    halves = (
        devices.transfer_s({start.first: batch}, {start.first: share[0], d: share[1]})[0]
        for d in links
    )
    gpu, link = node.platforms[start.first].gpu, next(iter(links.values()))
    gamma = settings.gamma
    if gamma is None:
        gamma = gamma_of(1, gpu.bf16_tflops, link.gbps, spec.hidden)
    Estimate.printed(gamma)
    result = Problem(
        spec=spec, node=node, devices=devices, costs=operation_costs(node.chips[0]), batch=batch,
        context=settings.context, gamma=gamma, per_transition=max(halves) / alone.seconds,
        capacity={
            d: settings.free_gib[d] * 2**30 if settings.free_gib
            else settings.memory_share * node.platforms[d].gpu.hbm_bytes
            for d in (start.first, *links)
        },
        unscaled=unscaled, start=start,
    )  # fmt: skip
    check_room(result.held(start), result.capacity)
    return result


def planned(problem: Problem, algorithm: str) -> Placement:
    """Return the plan of an algorithm of `ALGORITHMS`."""
    start, room = problem.start, problem.room()
    by_eq_4, counted = Estimate.printed(problem.gamma), Estimate.counted(problem.per_transition)
    if algorithm == "printed":
        return scale_up(start, room, by_eq_4)
    if algorithm == "spread":
        return scale_up(start, room, by_eq_4, candidates="anywhere")
    if algorithm == "singly":
        return scale_up(start, room, counted, order="most_room")
    if algorithm == "runs":
        return by_runs(start, room, counted)
    if algorithm == "exact":
        return exact(start, room, counted)
    if start.devices != (start.first,):
        raise SettingError(
            "algorithms", algorithm, "another plan if several GPUs hold the unscaled model"
        )
    kv = problem.held(start)[start.first].kv
    free = problem.free_bytes()
    free[start.first] += kv
    return fastest(
        problem.devices, free, batch=problem.batch, context=problem.context, first=start.first
    )


def row_of(problem: Problem, placement: Placement) -> dict[str, Any]:
    """Return a plan's numbers: gains, step, operations."""
    timed = {"batch": problem.batch, "context": problem.context}
    step = step_time(placement, problem.devices, **timed)
    unscaled = step_time(problem.unscaled, problem.devices, **timed)
    costed = [_costed(problem, o) for o in _operations(problem, placement)]
    return {
        "copies": sum(placement.counts) - placement.layers,
        "transitions": transitions(placement),
        "changes": changes(placement, problem.batch),
        "eq_4": printed_speedup(placement.counts, problem.gamma),
        "eqs_1_to_3": _split(problem, placement),
        "counted": counted_speedup(placement, problem.per_transition),
        "step_s": step.seconds,
        "step_gain": unscaled.seconds / step.seconds,
        "operations_s": sum(seconds for _, seconds in costed),
        "moved_bytes": sum(nbytes for nbytes, _ in costed),
    }


def _split(problem: Problem, placement: Placement) -> float:
    first, node = placement.first, problem.node
    layer_s = [
        problem.devices.layer_s(d, problem.batch, problem.context) for d in range(len(node.gpus))
    ]
    links = {d: node.link(first, d) for d in placement.devices if d != first}
    gbps = {d: link.gbps for d, link in links.items() if link is not None}
    most = next(iter(gbps.values()), 1.0)
    return split_speedup(
        placement.shares(problem.batch), problem.gamma,
        rates=[[layer_s[first] / layer_s[d] for d in devices] for devices in placement.copies],
        links=[[gbps.get(d, most) / most for d in devices] for devices in placement.copies],
    )  # fmt: skip


def operated(problem: Problem, texts: Sequence[str]) -> Placement:
    """Return the placement after a user's operations; nothing moves."""
    placement = problem.start
    for k, text in enumerate(texts):
        kind, layers, device, module = _parsed(text, f"operations[{k}]", problem.spec)
        if device not in problem.capacity:
            devices = ", ".join(map(str, problem.capacity))
            raise SettingError(f"operations[{k}]", text, f"a device among {devices}")
        try:
            if kind == "replicate":
                placement = placement.replicated(layers, device)
            elif kind == "evict":
                placement = placement.evicted(layers, device)
            else:
                for layer in layers:
                    source = placement.copies[layer][0] if 0 <= layer < placement.layers else 0
                    placement = placement.migrated([layer], source, device, module)
        except SettingError as error:
            raise SettingError(f"operations[{k}]", text, f"layers: {error.allowed}") from None
        check_room(problem.held(placement), problem.capacity)
    return placement


def _parsed(text: str, where: str, spec: ModelSpec) -> tuple[str, list[int], int, str]:
    words = str(text).split()
    if len(words) not in (3, 4) or words[0] not in KINDS or not words[2].isdecimal():
        raise SettingError(where, text, OPERATION)
    module = words[3] if len(words) == 4 else "layer"
    try:
        module_of(spec, module)
    except SettingError as error:
        raise SettingError(where, text, f"a module: {error.allowed}") from None
    if module != "layer" and words[0] != "migrate":
        raise SettingError(where, text, "whole layers; only migrate moves modules")
    layers: list[int] = []
    for part in words[1].split(","):
        begin, _, end = part.partition("-")
        if not begin.isdecimal() or not (end or begin).isdecimal():
            raise SettingError(where, text, OPERATION)
        last = min(int(end or begin), spec.layers)  # one layer too many is rejected later
        layers += range(int(begin), last + 1)
    if not layers:
        raise SettingError(where, text, OPERATION)
    return words[0], layers, int(words[2]), module


def _read(path: Path, spec: ModelSpec) -> Placement:
    content = read_json_object(path)
    for name, target in (("model", spec.name), ("layers", spec.layers)):
        if content.get(name) != target:
            raise SettingError(
                f"plan.{name}", content.get(name), f"{target!r}, as the plan must be of this model"
            )
    try:
        copies, rows = (
            tuple(tuple(map(int, row)) for row in content[k]) for k in ("copies", "rows")
        )
        parts = tuple(Part(int(a), str(b), int(c)) for a, b, c in content["parts"])
    except (KeyError, TypeError, ValueError):
        raise DataError(str(path), "not a plan with copies, rows and parts") from None
    if len(copies) != spec.layers:
        raise SettingError("plan.copies", len(copies), f"{spec.layers} layers")
    return Placement(copies, rows, parts)


def _write(path: Path, problem: Problem, placement: Placement) -> None:
    named = {"model": problem.spec.name, "layers": problem.spec.layers}
    parts = [(p.layer, p.module, p.device) for p in placement.parts]
    write_json(path, named | {"copies": placement.copies, "rows": placement.rows, "parts": parts})


def _print(settings: PlanSettings) -> Ran:
    out = Console(highlight=False, width=130)
    problem = problem_of(settings)
    plans: dict[str, Placement] = {}
    if settings.operations:
        plans["given"] = operated(problem, settings.operations)
    elif settings.plan:
        plans["plan"] = problem.start
    if not settings.operations:
        is_on_one = problem.start.devices == (problem.start.first,)
        names = settings.algorithms or [n for n in ALGORITHMS if n != "fastest" or is_on_one]
        plans |= {name: planned(problem, name) for name in names}
    for placement in plans.values():
        check_room(problem.held(placement), problem.capacity)
    out.print(
        f"{problem.spec.name}, {problem.spec.layers} layers, on {problem.node.name}: "
        f"{problem.batch} rows of {problem.context} tokens, gamma {problem.gamma:.3g}, "
        f"a transition {problem.per_transition:.2%} of an unscaled step"
    )
    table = Table(title="gain over the unscaled model", title_justify="left", box=SIMPLE_HEAD)
    heads = (
        "plan", "copies", "transitions", "changes", "Eq. 4", "Eqs. 1 to 3", "counted", "step",
        "step ms", "operations s", "moved GiB",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head == "plan" else "right")
    for name, placement in plans.items():
        r = row_of(problem, placement)
        table.add_row(
            name, f"{r['copies']}", f"{r['transitions']}", f"{r['changes']}", f"{r['eq_4']:.3f}",
            f"{r['eqs_1_to_3']:.3f}", f"{r['counted']:.3f}", f"{r['step_gain']:.3f}",
            f"{1e3 * r['step_s']:.2f}", f"{r['operations_s']:.2f}",
            f"{r['moved_bytes'] / 2**30:.2f}",
        )  # fmt: skip
    out.print(table)
    for placement in dict.fromkeys(plans.values()):
        for name in (name for name, candidate in plans.items() if candidate == placement):
            out.print(f"{name}: {ALGORITHMS.get(name, 'given operations')}")
        for line in (*_lines(problem, placement), *_memory(problem, placement)):
            out.print(f"  {line}")
    if settings.write and plans:
        _write(Path(settings.write), problem, list(plans.values())[-1])
        out.print(f"written to {settings.write}: {list(plans)[-1]}")
    return Ran(table)


def _operations(problem: Problem, placement: Placement) -> list[Operation]:
    parts = [
        Operation(
            kind="migrate", layers=(p.layer,), source=placement.copies[p.layer][0],
            device=p.device, module=p.module, with_kv=p.module in ("attention", "kv"),
        )
        for p in placement.parts if p not in problem.start.parts
    ]  # fmt: skip
    return [*operations_between(problem.start, placement), *parts]


def _costed(problem: Problem, operation: Operation) -> tuple[int, float]:
    rows = problem.start.partitions(problem.batch)
    source = [rows[layer].get(operation.source, 0) for layer in operation.layers]
    tokens = round(sum(source) / len(source) * problem.context)
    seconds = operation_s(operation, problem.spec, problem.node, problem.costs, tokens)
    return moved_bytes(operation, problem.spec, tokens), seconds


def _lines(problem: Problem, placement: Placement) -> Iterator[str]:
    for o in _operations(problem, placement):
        moved, seconds = _costed(problem, o)
        taken = operation_bytes(o, problem.spec, problem.costs)
        yield (
            f"{o.kind} {o.module} {_ranges(o.layers)} from device {o.source} to {o.device}: "
            f"{moved / 2**20:,.0f} MiB moved, {taken / 2**20:,.0f} MiB taken, {seconds:.3f} s"
        )


def _memory(problem: Problem, placement: Placement) -> Iterator[str]:
    for device, use in problem.held(placement).items():
        free = problem.capacity[device] - use.total
        yield (
            f"device {device}: weights {use.weights / 2**20:,.0f} MiB, KV {use.kv / 2**20:,.0f}, "
            f"process {use.process / 2**20:,.0f}, free {free / 2**20:,.0f}"
        )


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] + 1 == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def main(arguments: Sequence[str]) -> int:
    """Print the plans; return the exit status."""
    return run_settings(PlanSettings, arguments, _print)
