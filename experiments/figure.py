"""Registration of figures: computing functions name titles and drawings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, wraps
from importlib import import_module
from importlib.util import resolve_name
from inspect import getfile, unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import pyarrow as pa

from c2c.config import load_code
from c2c.errors import SettingError
from c2c.hardware import LinkVariant, conf_file
from c2c.ranges import check_fields
from experiments.claims import Improvement, Result
from experiments.dependencies import imported_files
from experiments.experiment import read_experiment

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
    "figure_files",
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
_WITHIN: Final = "experiments."
_CLAIMS: Final = "experiments.claims"
_DRAWINGS: Final = "experiments.figures"
_GROUPS: Final = ("papers", "all")
_PAPER: Final = "c2cserve"  # its figures have names without a prefix
# Order of the page and of `figures=all`; other figures follow.
_ORDER: Final = tuple(
    """
    table1 table2 fig2 fig4 fig5 fig6 fig8 fig9 fig10 fig11 fig12 fig12moe fig13 anchors streaming
    fig14 fleets projection
    medusa.fig8 medusa.fig9 medusa.fig10 medusa.switch
    cocoserve.table2 cocoserve.fig3 cocoserve.fig11 cocoserve.fig8 cocoserve.fig9 cocoserve.fig10
    cocoserve.fig6 cocoserve.host_copies cocoserve.two_cards
    weaver.model weaver.table1 weaver.fig4 weaver.fig5 weaver.fig6 weaver.fig7 weaver.cold_slices
    tessera.fig2 tessera.fig6 tessera.fig7 tessera.fig8 tessera.fig9 tessera.fig10 tessera.fig11
    workload_map worth prefix agents
    """.split()  # noqa: SIM905 - quotes would add a page
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Settings of one figure.

    `traces`: folder of public traces as Parquet, or None. `progress`: gets (done, total).
    """

    profile: Literal["quick", "full"]
    link_variant: LinkVariant
    seeds: tuple[int, ...]
    traces: Path | None = None
    overrides: tuple[str, ...] = ()
    progress: Callable[[float, float], None] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise SettingError("seeds", self.seeds, "distinct whole numbers, at least 0")

    @property
    def quick(self) -> bool:
        """True for a figure's small version."""
        return self.profile == "quick"

    def each[T](self, runs: Sequence[T]) -> Iterator[T]:
        """Yield each run, and report progress."""
        for done, run in enumerate(runs, 1):
            yield run
            if self.progress is not None:
                self.progress(done, len(runs))

    def link_text(self, gbps: float) -> str:
        """Return link variant and rate, for a caption."""
        return f"link variant '{self.link_variant}' ({gbps:g} GB/s, host to device)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """Computed content of a figure.

    Attributes:
      tables: tidy tables by name.
      results: answers to claims.
      finding: sentence with numbers; the picture's title.
      caption: some 50 words at most, in the picture.
      assumptions: sentences below the picture in the report.
      report: table below the picture, the header first.
      improvements: additions to the paper's rules.
    """

    tables: Mapping[str, pa.Table]
    results: tuple[Result, ...]
    caption: str
    finding: str = ""
    assumptions: tuple[str, ...] = ()
    report: tuple[tuple[str, ...], ...] = ()
    improvements: tuple[Improvement, ...] = ()


type Compute = Callable[[Context], Computed]
type ComputeOf[E] = Callable[[Context, E], Computed]
type Draw = Callable[[Mapping[str, pa.Table], str], Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec:
    """Registered figure: `compute` makes tidy tables, `draw` their picture; see `figure`."""

    name: str
    title: str
    compute: Compute
    draw: str | Draw
    experiment: type[Any] | None = None
    needs: tuple[str, ...] = MODEL
    traces: tuple[str, ...] = ()
    profiles: tuple[str, ...] = PROFILES
    beyond: bool = False

    def settings(self, context: Context) -> Any:
        """Return the figure's experiment with overrides, or None."""
        if self.experiment is None:
            if context.overrides:
                key, _, value = context.overrides[0].partition("=")
                raise SettingError(key, value, f"a figure with settings; {self.name} has none")
            return None
        return read_experiment(self.experiment, self._at, context.overrides, quick=context.quick)

    @property
    def experiment_file(self) -> Path | None:
        """File of its experiment; None if it has none."""
        paper, _, name = self._at.rpartition("/")
        return conf_file(f"experiment/{paper}", name) if self.experiment else None

    @property
    def paper(self) -> str:
        """System in whose paper or folder the figure is."""
        return self.name.rpartition(".")[0] or _PAPER

    @property
    def _at(self) -> str:
        return f"{self.paper}/{self.name.rpartition('.')[2]}"

    @property
    def sources(self) -> tuple[str, ...]:
        """Packages that the content key covers whole."""
        return (*self.needs, _CLAIMS)

    @property
    def files(self) -> tuple[Path, ...]:
        """Files of `experiments` that compute and draw it."""
        drawn = self._drawn_by if isinstance(self.draw, str) else self.draw.__module__
        inside = imported_files([self.module, drawn])
        return inside if self.module.startswith(_WITHIN) else (*inside, self._file)

    @property
    def module(self) -> str:
        """Name of the module that computes it."""
        return str(_function(self.compute).__module__)

    @property
    def _file(self) -> Path:
        return Path(getfile(unwrap(_function(self.compute))))

    def __reduce__(self) -> Any:
        """Pickle the figure by its name and its file."""
        path = None if self.module.startswith(_WITHIN) else self._file
        return _registered, (self.name, self.module, path)

    @property
    def drawing(self) -> Draw:
        """Drawing function; loads matplotlib."""
        if not isinstance(self.draw, str):
            return self.draw
        result: Draw = getattr(import_module(self._drawn_by), self.draw.rpartition(".")[2])
        return result

    @property
    def _drawn_by(self) -> str:
        return resolve_name(str(self.draw).rpartition(".")[0], self.module.rpartition(".")[0])


_FOUND: dict[str, FigureSpec] = {}


def _function(compute: Any) -> Any:
    return compute.func if isinstance(compute, partial) else compute


def _registered(name: str, module: str, own: Path | None) -> FigureSpec:
    if own is None:
        import_module(module)
    else:
        load_code(figure_files(own.parents[1]))
    return _FOUND[name]


@overload
def figure[C: Compute](
    name: str,
    *,
    title: str,
    draw: str | Draw,
    experiment: None = None,
    needs: tuple[str, ...] = MODEL,
    traces: tuple[str, ...] = (),
    profiles: tuple[str, ...] = PROFILES,
    beyond: bool = False,
) -> Callable[[C], C]: ...


@overload
def figure[E](
    name: str,
    *,
    title: str,
    draw: str | Draw,
    experiment: type[E],
    needs: tuple[str, ...] = MODEL,
    traces: tuple[str, ...] = (),
    profiles: tuple[str, ...] = PROFILES,
    beyond: bool = False,
) -> Callable[[ComputeOf[E]], Compute]: ...


def figure(name: str, *, experiment: type[Any] | None = None, **about: Any) -> Any:
    """Return a decorator that registers a function as a figure's computation.

        @figure("tessera.fig7", title="Tessera, Fig. 7: latency over the rate", experiment=Online,
                draw=".papers.tessera.drawing.draw_online", needs=SYSTEMS, traces=(TRACE,))
        def compute(context: Context, experiment: Online) -> Computed: ...

    Args:
      name: name on the command line; C2CServe's figures have no prefix.
      experiment: dataclass of its settings in `conf/experiment`.
      about: `title`; `draw`, a function or "module.function"; `needs`, packages that the result
        depends on; `traces`; `profiles` of `figures=all`; `beyond`, whether no paper has it.
    """

    def keep(compute: Callable[..., Computed]) -> Compute:
        there = _FOUND.get(name)
        if there is not None and there.compute.__module__ != compute.__module__:
            raise ValueError(f"two figures are called {name}: {there.compute} and {compute}")

        @wraps(_function(compute))
        def with_experiment(context: Context) -> Computed:
            return compute(context, _FOUND[name].settings(context))

        result: Compute = compute if experiment is None else with_experiment
        _FOUND[name] = FigureSpec(name=name, compute=result, experiment=experiment, **about)
        return result

    return keep


@cache
def modules_with_figures(
    folder: Path = Path(__file__).parent, within: str = _WITHIN
) -> tuple[str, ...]:
    """Return a folder's modules that register figures."""
    return tuple(
        within + ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in sorted([*folder.glob("*/*.py"), *folder.glob("papers/*/*.py")])
        if re.search(r"^\s*@?figure\(", path.read_text("utf-8"), re.MULTILINE)
    )


def figure_files(folder: Path) -> tuple[Path, ...]:
    """Return a settings folder's files in `figure/`."""
    return tuple(sorted((folder / "figure").glob("*.py")))


def code() -> tuple[str, ...]:
    """Return the packages of `experiments` in any figure's result."""
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

    "papers", "all" (also those beyond), or a system's name.
    """
    specs = figures()
    words = [names] if isinstance(names, str) else list(names)
    words = [part.strip() for name in words for part in str(name).split(",") if part.strip()]
    words = [name.removeprefix(f"{_PAPER}.") for name in words]
    systems = {spec.paper for spec in specs.values()}
    allowed = f"papers, all, or names among {', '.join((*sorted(systems), *specs))}"
    if not words:
        raise SettingError("figures", names, allowed)
    for name in words:
        if name not in (*_GROUPS, *systems, *specs):
            raise SettingError("figures", name, allowed)
    return tuple(
        spec
        for spec in specs.values()
        if {*words} & {spec.name, spec.paper}
        or (profile in spec.profiles and {*words} & {*_GROUPS[spec.beyond :]})
    )
