"""The command `c2c` and its subcommands."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Final, NamedTuple

__all__ = ["COMMANDS", "main"]

USAGE: Final = """\
c2c COMMAND [setting=value ...]: serving of many LLMs whose weights are in host memory.

    c2c simulate workload=file workload.path=my.csv hardware=gh200 mig=7x12gb
    c2c simulate --help        # every setting, and its meaning
"""

LAB: Final = "experiments.lab"
"""Instruments of c2c's own development: not in the wheel."""


class Command(NamedTuple):
    """A subcommand: its module with `main`, and help."""

    module: str
    text: str


class Group(NamedTuple):
    """Subcommands of two words with the same first word."""

    text: str
    commands: Mapping[str, Command]


COMMANDS: Final[Mapping[str, Command | Group]] = {
    "simulate": Command("experiments.simulate", "serve a workload on a simulated fleet; -m sweeps"),
    "estimate": Command("experiments.estimate", "a model on chips, beside measured runs"),
    "fit": Command("experiments.fit_run", "an engine's host times, from your benchmark's results"),
    "capacity": Command("experiments.capacity", "highest rate, most models or smallest fleet"),
    "advise": Command("experiments.advise", "cheapest fleets for a workload and its targets"),
    "explore": Command("experiments.explore.command", "a page whose pictures follow its controls"),
    "layout": Command("experiments.layout", "nvidia-smi commands of a MIG layout"),
    "collect": Command("experiments.collect", "all runs of a folder as one table"),
    "reproduce": Command("experiments.reproduce.command", "figures and numbers of the papers"),
    "serve": Command("experiments.serve", "live engine, or a simulated one, behind OpenAI's API"),
    "generate": Command("experiments.generate", "text from a checkpoint"),
    "warm": Command("experiments.warm", "executables of a checkpoint, ahead of its first use"),
    "replay": Command("experiments.replay", "a live run simulated again, and both compared"),
    "kernels": Command("pallas_kernels.cli", "kernels that run here; stored, tuned and checked"),
    "plan": Group(
        "the papers' planners",
        {
            "tessera": Command("experiments.papers.tessera.ways", "one model over two unlike GPUs"),
            "cocoserve": Command(
                "experiments.papers.cocoserve.plan", "copies of layers over a node"
            ),
            "weaver": Command(
                "experiments.papers.weaver.plan", "a cold model's cuts for a hot one"
            ),
        },
    ),
    "try": Group(
        "the papers' mechanisms, in processes of this machine",
        {
            "medusa": Command("experiments.papers.medusa.restore", "graphs captured and restored"),
            "medusa_ranks": Command(
                "experiments.papers.medusa.ranks", "one artefact for all ranks"
            ),
            "medusa_steps": Command(
                "experiments.papers.medusa.steps", "decode steps for an absent GPU"
            ),
            "cocoserve": Command(
                "experiments.papers.cocoserve.scale", "layers copied while serving"
            ),
            "weaver": Command(
                "experiments.papers.weaver.pair", "attention given to a second process"
            ),
            "tessera": Command(
                "experiments.papers.tessera.placed_step", "a step's machine code over two devices"
            ),
        },
    ),
    "calibrate": Group(
        "constants of the cost model",
        {
            "engine": Command("experiments.calibrate", "from live runs on this machine"),
            "gpu": Command("experiments.lab.gpu.calibrate", "from rows of make gpu"),
            "kernels": Command("experiments.kernel_times", "a chip's kernel times, from nsys"),
            "claims": Command("c2c.cost.calibration", "from numbers of the papers"),
            "tessera": Command(
                "experiments.papers.tessera.workloads", "from ratios of Tessera's pairs"
            ),
        },
    ),
    "bench": Group(
        "speed and accuracy",
        {
            "simulator": Command(
                "experiments.lab.bench.simulator", "requests a second, peak memory"
            ),
            "systems": Command(
                "experiments.lab.bench.systems", "requests a second of every system"
            ),
            "planner": Command(
                "experiments.papers.tessera.planner", "CPU time and gap of the planner"
            ),
            "measured": Command("experiments.measured.command", "public measurements"),
            "prediction": Command("experiments.lab.bench.prediction.command", "the live engine"),
            "llama_cpp": Command("experiments.lab.bench.llama_cpp", "llama.cpp beside the engine"),
            "referee": Command(
                "experiments.lab.referee.command", "other simulators beside this one"
            ),
        },
    ),
}


def main() -> int:
    """Run this process's subcommand; return the exit status."""
    words = sys.argv[1:]
    name, commands = "c2c", COMMANDS
    while words and words[0] in commands:
        name += f" {words[0]}"
        one = commands[words.pop(0)]
        if isinstance(one, Command):
            if one.module.startswith(LAB) and find_spec(LAB) is None:
                print(
                    f"error: {name} needs a checkout of c2c; the wheel has no {LAB}",
                    file=sys.stderr,
                )
                return 2
            # Hydra reads this process's arguments.
            sys.argv[:] = [name, *words]
            status: int | None = import_module(one.module).main(words)
            return status or 0
        commands = one.commands
    if not words or words[0] in ("-h", "--help"):
        print(_help(name, commands))
        return 0
    if words[0] == "--version":
        import c2c

        print(f"c2c {c2c.__version__}")
        return 0
    from c2c.errors import unknown_name

    print(f"error: {unknown_name('command', words[0], commands)}", file=sys.stderr)
    return 2


def _help(name: str, commands: Mapping[str, Command | Group]) -> str:
    lines = [USAGE] if name == "c2c" else []
    for word, one in commands.items():
        lines.append(f"{name} {word}".ljust(24) + one.text)
        if isinstance(one, Group):
            lines.append(" " * 26 + ", ".join(one.commands))
    return "\n".join(lines)
