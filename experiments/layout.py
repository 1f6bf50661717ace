"""Print the nvidia-smi commands that cut a GPU into a MIG layout; changes nothing here.

    python -m experiments.layout mig=3g_4x1g
    python -m experiments.layout hardware=h100_sxm mig=custom 'mig.parts=[3g.40gb,2x2g.20gb]' gpu=1
    python -m experiments.layout mig=planned workload=file workload.path=trace.csv   # the best one

Takes the settings of `experiments.simulate`, and `gpu`: its number in nvidia-smi. The lines may be
piped to a shell on the machine that has the GPU, by somebody who may administer it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from c2c.config import Layout, build_layout, load
from c2c.errors import SettingError
from c2c.hardware import Placed, placed, reconfiguration
from experiments.command import command

__all__ = ["commands", "main"]

GPU = "gpu"


def main(arguments: Sequence[str]) -> int:
    """Print the commands; return the exit status, 2 for settings that cannot work."""
    if {"-h", "--help"}.intersection(arguments):
        print(__doc__)
        return 0
    return command(lambda: _print(arguments), arguments=arguments)


def _print(arguments: Sequence[str]) -> int:
    gpu, rest = _gpu(arguments)
    for line in commands(build_layout(load(rest)), gpu):
        print(line)
    return 0


def commands(layout: Layout, gpu: int = 0) -> Iterator[str]:
    """Yield the lines of a shell script that makes a layout, comments included.

    Source: NVIDIA Multi-Instance GPU User Guide, "Getting Started with MIG", and
    `nvidia-smi mig --help`: a profile's name, and behind a colon the memory slice it starts at.

    Raises:
      SettingError: the GPU cannot be cut, or not like this.
    """
    platform, name = layout.platform, layout.mig.name
    if platform.partition is None:
        raise SettingError("hardware", platform.name, "a GPU that can be cut into MIG slices")
    instances = placed(platform, layout.mig)
    count = Counter(one.profile.name for one in instances)
    what = " + ".join(p if n == 1 else f"{n}x{p}" for p, n in count.items()) or "the whole GPU"
    for note in layout.notes:
        yield f"# {note}"
    yield f"# {name} on {platform.name}: {what}"
    if not instances:
        yield f"sudo nvidia-smi -i {gpu} -mig 0"
        return
    if any(text.startswith("derived") for o in instances for text in o.profile.source.values()):
        yield "# some profiles are derived, not listed by the vendor: nvidia-smi mig -lgip has them"
    change = reconfiguration(platform, platform.mig[0], layout.mig)
    origin = f", as timed on {change.carried_from}" if change.carried_from else ""
    yield f"# creating them takes about {change.seconds:.1f} s{origin}"
    yield f"sudo nvidia-smi -i {gpu} -mig 1"
    yield "# where it is cut already, first: sudo nvidia-smi mig -dci; sudo nvidia-smi mig -dgi"
    yield f"sudo nvidia-smi mig -i {gpu} -cgi {_tuples(instances)} -C"
    yield f"nvidia-smi mig -i {gpu} -lgi"


def _tuples(instances: Sequence[Placed]) -> str:
    """Return what `-cgi` takes; with places where slices are unlike.

    Left to itself the driver may put a slice where the next one then does not fit: 3g beside four
    of 1g must not start at 0. Equal slices fit wherever it puts them.
    """
    if len({one.profile.name for one in instances}) == 1:
        return ",".join(one.profile.name for one in instances)
    return ",".join(f"{one.profile.name}:{one.start}" for one in instances)


def _gpu(arguments: Sequence[str]) -> tuple[int, list[str]]:
    given = [a.removeprefix(f"{GPU}=") for a in arguments if a.startswith(f"{GPU}=")]
    if any(not text.isascii() or not text.isdigit() for text in given) or len(given) > 1:
        raise SettingError(GPU, given[-1], "a GPU's number in nvidia-smi, given once")
    rest = [a for a in arguments if not a.startswith(f"{GPU}=")]
    return int(given[0]) if given else 0, rest


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
