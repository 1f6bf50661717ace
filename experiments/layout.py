"""Print the nvidia-smi commands that cut a GPU into a MIG layout, without running them.

    c2c layout mig=3g_4x1g
    c2c layout hardware=h100_sxm mig=custom 'mig.parts=[3g.40gb,2x2g.20gb]' gpu=1
    c2c layout mig=planned workload=file workload.path=trace.csv   # the best one
    c2c layout mig=3g_4x1g before=7x12gb     # changes from one to the other

Settings are those of `c2c simulate`, `gpu` (the number in nvidia-smi) and `before` (its layout). An
administrator can pipe the lines to a shell. With `before`, slices in both layouts keep serving; ids
of the others have to be filled in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from c2c.config import Layout, build_layout, load
from c2c.errors import SettingError
from c2c.hardware import Placed, Reconfiguration, placed, reconfiguration
from experiments.command import command
from experiments.plain_settings import without_folder

__all__ = ["changing", "commands", "main"]

GPU, BEFORE = "gpu", "before"
_NUMBER = "a GPU's number in nvidia-smi"


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status, 2 for invalid settings."""
    return command(lambda: _print(arguments), arguments, help_text=__doc__)


def _print(arguments: Sequence[str]) -> int:
    gpu, rest = _taken(without_folder(arguments), GPU, "0", _NUMBER)
    before, rest = _taken(rest, BEFORE, "", "the GPU's present layout")
    if not gpu.isascii() or not gpu.isdigit():
        raise SettingError(GPU, gpu, f"{_NUMBER}, given once")
    layout = build_layout(load(rest))
    lines = changing(layout, before, int(gpu)) if before else commands(layout, int(gpu))
    for line in lines:
        print(line)
    return 0


def commands(layout: Layout, gpu: int = 0) -> Iterator[str]:
    """Yield the lines of a shell script for a layout.

    Source: NVIDIA Multi-Instance GPU User Guide, "Getting Started with MIG".
    """
    platform, name = layout.platform, layout.mig.name
    if platform.partition is None:
        raise SettingError("hardware", platform.name, "a GPU that can be cut into MIG slices")
    instances = placed(platform, layout.mig)
    for note in layout.notes:
        yield f"# {note}"
    yield f"# {name} on {platform.name}: {_counted(instances) or 'the whole GPU'}"
    if not instances:
        yield f"sudo nvidia-smi -i {gpu} -mig 0"
        return
    yield from _derived(instances)
    change = reconfiguration(platform, platform.mig[0], layout.mig)
    yield f"# creating them takes about {change.seconds:.1f} s{_origin(change)}"
    yield f"sudo nvidia-smi -i {gpu} -mig 1"
    yield "# if the GPU has slices, first: sudo nvidia-smi mig -dci; sudo nvidia-smi mig -dgi"
    yield f"sudo nvidia-smi mig -i {gpu} -cgi {_tuples(instances)} -C"
    yield f"nvidia-smi mig -i {gpu} -lgi"


def changing(layout: Layout, before: str, gpu: int = 0) -> Iterator[str]:
    """Yield the lines of a shell script for a change of layout."""
    platform = layout.platform
    try:
        change = reconfiguration(platform, before, layout.mig)
    except SettingError as error:
        if error.field == "mig" and error.value == before:
            raise SettingError(BEFORE, before, error.allowed) from None
        raise
    if not placed(platform, before):
        yield from commands(layout, gpu)
        return
    yield f"# from {before} to {layout.mig.name} on {platform.name}"
    yield f"# stay in service: {_counted(change.kept) or 'none'}"
    gone, come = _counted(change.destroyed), _counted(change.created)
    yield f"# destroyed: {gone or 'none'}; created: {come or 'none'}"
    yield from _derived(change.created)
    yield f"# takes about {change.seconds:.1f} s once destroyed slices are idle{_origin(change)}"
    mig = f"sudo nvidia-smi mig -i {gpu}"
    if not placed(platform, layout.mig):
        yield f"{mig} -dci && {mig} -dgi && sudo nvidia-smi -i {gpu} -mig 0"
        return
    if change.destroyed:
        yield f"nvidia-smi mig -i {gpu} -lgi  # ids of the slices to destroy, by profile and start"
    for one in change.destroyed:
        yield f"{mig} -dci -gi ID && {mig} -dgi -gi ID  # {one.profile.name} at {one.start}"
    if change.created:
        places = ",".join(f"{one.profile.name}:{one.start}" for one in change.created)
        yield f"{mig} -cgi {places} -C"
    yield f"nvidia-smi mig -i {gpu} -lgi"


def _counted(instances: Sequence[Placed]) -> str:
    count = Counter(one.profile.name for one in instances)
    return " + ".join(p if n == 1 else f"{n}x{p}" for p, n in count.items())


def _derived(instances: Sequence[Placed]) -> Iterator[str]:
    if any(text.startswith("derived") for o in instances for text in o.profile.source.values()):
        yield "# some profiles are derived, not from the vendor's table: see nvidia-smi mig -lgip"


def _origin(change: Reconfiguration) -> str:
    return f", as timed on {change.carried_from}" if change.carried_from else ""


def _tuples(instances: Sequence[Placed]) -> str:
    if len({one.profile.name for one in instances}) == 1:
        return ",".join(one.profile.name for one in instances)
    return ",".join(f"{one.profile.name}:{one.start}" for one in instances)


def _taken(arguments: Sequence[str], key: str, default: str, allowed: str) -> tuple[str, list[str]]:
    values = [a.removeprefix(f"{key}=") for a in arguments if a.startswith(f"{key}=")]
    if len(values) > 1:
        raise SettingError(key, values[-1], f"{allowed}, given once")
    rest = [a for a in arguments if not a.startswith(f"{key}=")]
    return (values or [default])[0], rest
