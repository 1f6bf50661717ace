"""Registration of figures: a function that computes one names its title and its drawing.

    @figure("tessera.fig7", title="Tessera, Fig. 7: latency over the rate",
            draw="tessera.draw_online", needs=SYSTEMS, traces=(TRACE,))
    def compute(context: Context) -> Computed: ...

Modules with such a function, in packages below `experiments`, are found by their text; nothing else
names the figure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from c2c.errors import SettingError
from c2c.hardware import LinkVariant
from c2c.ranges import check_fields
from experiments.claims import Improvement, Result
from experiments.imported import imported_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "MODEL",
    "PROFILES",
    "SIMULATOR",
    "SYSTEMS",
    "Computed",
    "Context",
    "FigureSpec",
    "choose",
    "code",
    "figure",
    "figures",
]

PROFILES = ("quick", "full")
# Packages that a result depends on, beside `experiments.claims` and the modules that it imports.
MODEL: Final = ("c2c.hardware", "c2c.models", "c2c.cost")
SYSTEMS: Final = (*MODEL, "c2c.systems")
SIMULATOR: Final = (
    *SYSTEMS,
    "c2c.workloads",
    "c2c.policies",
    "c2c.serving",
    "c2c.simulator",
    "c2c.metrics",
    "c2c.config",
)
_CLAIMS: Final = "experiments.claims"
_DRAWINGS: Final = "experiments.figures"
_PAPER: Final = "c2cserve"  # its figures have names without a prefix
# Order of the page and of `figures=all`; other figures follow.
_ORDER: Final = tuple(
    """
    table1 table2 fig2 fig4 fig5 fig6 fig8 fig9 fig10 fig11 fig12 fig12moe fig13 anchors fig14
    fleets projection
    medusa.fig8 medusa.fig9 medusa.fig10 medusa.switch
    cocoserve.table2 cocoserve.fig3 cocoserve.fig11 cocoserve.fig8 cocoserve.fig9 cocoserve.fig10
    cocoserve.fig6 cocoserve.host_copies cocoserve.two_cards
    weaver.model weaver.table1 weaver.fig4 weaver.fig5 weaver.fig6 weaver.fig7 weaver.cold_slices
    tessera.fig2 tessera.fig6 tessera.fig7 tessera.fig8 tessera.fig9 tessera.fig10 tessera.fig11
    workload_map worth prefix
    """.split()  # noqa: SIM905 - quotes would add a page
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Settings of one figure.

    `seeds`: seeds of simulated runs. `traces`: folder with the public traces as Parquet, None if
    there is none. `progress`: callback that takes (done, total).
    """

    profile: Literal["quick", "full"]
    link_variant: LinkVariant
    seeds: tuple[int, ...]
    traces: Path | None = None
    progress: Callable[[float, float], None] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise SettingError("seeds", self.seeds, "distinct whole numbers, at least 0")

    @property
    def quick(self) -> bool:
        """True for the small version of a figure."""
        return self.profile == "quick"

    def each[T](self, runs: Sequence[T]) -> Iterator[T]:
        """Yield each of the runs, and report progress after it."""
        for done, run in enumerate(runs, 1):
            yield run
            if self.progress is not None:
                self.progress(done, len(runs))

    def link_text(self, gbps: float) -> str:
        """Return the link variant and its rate, for a caption."""
        return f"link variant '{self.link_variant}' ({gbps:g} GB/s, host to device)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """Computed content of a figure: tables, answers to claims, and texts.

    Attributes:
      tables: tidy tables by name.
      results: answers to claims.
      caption: one or two sentences, at most some 50 words, printed in the picture.
      assumptions: sentences of their own that the report lists below the picture: setup, load,
        readings of the paper.
      report: rows of a table that the report folds below the picture, the header first.
      improvements: additions to the paper's rules, where a figure compares the two.
    """

    tables: Mapping[str, pa.Table]
    results: tuple[Result, ...]
    caption: str
    assumptions: tuple[str, ...] = ()
    report: tuple[tuple[str, ...], ...] = ()
    improvements: tuple[Improvement, ...] = ()


type Compute = Callable[[Context], Computed]
type Draw = Callable[[Mapping[str, pa.Table], str], Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec:
    """Registered figure: `compute` makes tidy tables, `draw` their picture; see `figure`."""

    name: str
    title: str
    compute: Compute
    draw: str | Draw
    needs: tuple[str, ...] = MODEL
    traces: tuple[str, ...] = ()
    profiles: tuple[str, ...] = PROFILES

    @property
    def sources(self) -> tuple[str, ...]:
        """Packages that the content key covers whole."""
        return (*self.needs, _CLAIMS)

    @property
    def files(self) -> tuple[Path, ...]:
        """Files of `experiments` that compute and draw it; the content key covers them too."""
        if isinstance(self.draw, str):
            drawn = f"{_DRAWINGS}.{self.draw.rpartition('.')[0]}"
        else:
            drawn = self.draw.__module__
        compute = self.compute.func if isinstance(self.compute, partial) else self.compute
        return imported_files([compute.__module__, drawn])

    @property
    def drawing(self) -> Draw:
        """Drawing function; loads matplotlib."""
        if not isinstance(self.draw, str):
            return self.draw
        module, _, function = self.draw.rpartition(".")
        found: Draw = getattr(import_module(f"{_DRAWINGS}.{module}"), function)
        return found


_FOUND: dict[str, FigureSpec] = {}


def figure[C: Compute](
    name: str,
    *,
    title: str,
    draw: str | Draw,
    needs: tuple[str, ...] = MODEL,
    traces: tuple[str, ...] = (),
    profiles: tuple[str, ...] = PROFILES,
) -> Callable[[C], C]:
    """Return a decorator that registers a function as the computation of a figure.

    Args:
      name: name on the command line; C2CServe's figures have no prefix.
      title: title on the page.
      draw: function of tables and caption, or its name as "module.function" of
        `experiments.figures`.
      needs: packages whose source the result depends on, beside those of `experiments`.
      traces: files that it reads from the folder of traces, if available.
      profiles: profiles in which `figures=all` includes this figure.
    """

    def keep(compute: C) -> C:
        there = _FOUND.get(name)
        if there is not None and there.compute.__module__ != compute.__module__:
            raise ValueError(f"two figures are called {name}: {there.compute} and {compute}")
        _FOUND[name] = FigureSpec(
            name=name,
            title=title,
            compute=compute,
            draw=draw,
            needs=needs,
            traces=traces,
            profiles=profiles,
        )
        return compute

    return keep


@cache
def modules_with_figures(
    folder: Path = Path(__file__).parent, within: str = "experiments."
) -> tuple[str, ...]:
    """Return the modules of a folder's packages that register a figure, by their text."""
    return tuple(
        within + ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in sorted(folder.glob("*/*.py"))
        if re.search(r"^\s*@?figure\(", path.read_text("utf-8"), re.MULTILINE)
    )


def code() -> tuple[str, ...]:
    """Return the packages of `experiments` that any figure's result may depend on."""
    packages = (m.rpartition(".")[0] for m in modules_with_figures())
    return tuple(sorted({_CLAIMS, "experiments.figure", _DRAWINGS, *packages}))


def figures() -> dict[str, FigureSpec]:
    """Return every figure by name, in the page's order."""
    for module in modules_with_figures():
        import_module(module)
    rest = [name for name in _FOUND if name not in _ORDER]
    return {name: _FOUND[name] for name in (*_ORDER, *rest)}


def choose(names: str | Sequence[str], profile: str = "full") -> tuple[FigureSpec, ...]:
    """Return the named figures, in the page's order.

    "all" stands for the profile's figures, a system's name for all its figures. The prefix of
    C2CServe is optional: "c2cserve.fig10" is "fig10".

    Raises:
      SettingError: a name does not exist, or no name is given.
    """
    found = figures()
    wanted = [names] if isinstance(names, str) else list(names)
    wanted = [part.strip() for name in wanted for part in str(name).split(",") if part.strip()]
    wanted = [name.removeprefix(f"{_PAPER}.") for name in wanted]
    systems = {_PAPER, *(name.partition(".")[0] for name in found if "." in name)}
    allowed = f"all, or names among {', '.join((*sorted(systems), *found))}"
    if not wanted:
        raise SettingError("figures", names, allowed)
    for name in wanted:
        if name not in ("all", *systems, *found):
            raise SettingError("figures", name, allowed)
    return tuple(
        spec
        for spec in found.values()
        if {*wanted} & {spec.name, spec.name.partition(".")[0] if "." in spec.name else _PAPER}
        or ("all" in wanted and profile in spec.profiles)
    )
