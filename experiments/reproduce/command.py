"""Command `c2c reproduce`: figures, tables, agreeing claims, and a report."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf

from c2c.config import load_code
from c2c.errors import SettingError
from c2c.hardware import conf_dir
from c2c.workloads import shared_dir
from experiments.children import workers_of
from experiments.command import command
from experiments.experiment import overrides_in
from experiments.figure import PROFILES, Context, FigureSpec, choose, figure_files
from experiments.reproduce.swept import print_sweep
from experiments.simulation.own_settings import with_own_settings
from experiments.sweeping import check_arguments, fixed, grid, is_sweep

SEEDS = {"quick": (0, 1, 2), "full": (0, 1, 2, 3, 4)}
CLAIMS = ("summary", "compared", "all", "abstracts")
MOST_OF_A_NAME = 60  # characters of an override in a folder's name


def context_of(settings: dict[str, object], overrides: Sequence[str] = ()) -> Context:
    """Return the settings of all figures from the configuration."""
    profile = settings["profile"]
    if profile not in PROFILES:
        raise SettingError("profile", profile, f"one of {', '.join(PROFILES)}")
    variant = settings["link_variant"]
    if variant not in ("datasheet", "measured"):
        raise SettingError("link_variant", variant, "datasheet or measured")
    seeds = settings["seeds"]
    if seeds is None:
        seeds = SEEDS[str(profile)]
    elif isinstance(seeds, int):
        seeds = (seeds,)
    if not isinstance(seeds, list | tuple) or not all(isinstance(s, int) for s in seeds):
        raise SettingError("seeds", seeds, "a whole number or a list of them: seeds=[0,1,2]")
    traces = settings["traces"]
    if traces == "auto":
        path = shared_dir() / "traces"
        folder = path if path.is_dir() else None
    elif traces in (None, "none"):
        folder = None
    else:
        folder = Path(str(traces))
        if not folder.is_dir():
            raise SettingError("traces", traces, "auto, none or a folder that exists")
    return Context(
        profile="quick" if profile == "quick" else "full",
        link_variant="datasheet" if variant == "datasheet" else "measured",
        seeds=tuple(seeds),
        traces=folder,
        overrides=tuple(overrides),
    )


def run(settings: dict[str, object], overrides: Sequence[str] = ()) -> int:
    """Make the figures and the report; return 1 if a figure failed, else 0."""
    context = context_of(settings, overrides)
    if settings["claims"] not in CLAIMS:
        raise SettingError("claims", settings["claims"], f"one of {', '.join(CLAIMS)}")
    workers = workers_of(settings["workers"], "workers")
    specs = _specs(settings, context)
    for spec in specs:
        spec.settings(context)
    # matplotlib and the simulator are imported only after the settings are validated
    from experiments.reproduce.run import reproduce

    outcomes, _ = reproduce(
        specs,
        context,
        _folder(settings, overrides),
        resume=bool(settings["resume"]),
        overwrite=bool(settings["overwrite"]),
        claims=str(settings["claims"]),
        workers=workers,
    )
    failed = [o.name for o in outcomes if o.error]
    print(f"report: {_folder(settings, overrides) / 'index.html'}")
    if settings["claims"] == "summary":
        print("each claim: the same command with claims=compared, or claims=all")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _folder(settings: dict[str, object], overrides: Sequence[str]) -> Path:
    out = settings["out"]
    name = folder_name(context_of(settings, overrides))
    return Path(str(out)) if out else Path("runs/reproduce") / name


def folder_name(context: Context) -> str:
    """Return the results' folder name by profile, link, seeds, overrides."""
    link = "" if context.link_variant == "measured" else f"_{context.link_variant}"
    usual = context.seeds == SEEDS[context.profile]
    seeds = "" if usual else "_s" + "-".join(str(seed) for seed in context.seeds)
    suffix = "".join(f"_{_short(one)}" for one in context.overrides)
    return context.profile + link + seeds + suffix


def _short(override: str) -> str:
    text = override.lstrip("+").partition(".")[2]
    plain = re.sub(r"[^\w=.-]+", "-", text)
    if plain == text and len(text) <= MOST_OF_A_NAME:
        return text
    return f"{plain[:MOST_OF_A_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def settings_of(arguments: list[str]) -> dict[str, object]:
    """Return a command line's settings."""
    result: dict[str, object] = {}

    @hydra.main(config_path=str(conf_dir()), config_name="reproduce", version_base="1.3")
    def keep(cfg: DictConfig) -> None:
        settings = OmegaConf.to_container(cfg, resolve=True)
        assert isinstance(settings, dict)
        result.update({str(k): v for k, v in settings.items()})

    check_arguments(arguments, single="out")
    sys.argv[1:] = arguments
    keep()
    return result


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit status."""

    def work() -> int:
        words = as_lists(with_own_settings(arguments))
        for folder in (one.partition("=")[2] for one in words if one.startswith("--config-dir=")):
            load_code(figure_files(Path(folder)))
        if is_sweep(words):
            return _each(words)
        rest, overrides = overrides_in(words)
        settings = settings_of(rest)
        # empty after options such as --help, which Hydra answers
        return run(settings, overrides) if settings else 0

    return command(work, arguments)


def _each(arguments: Sequence[str]) -> int:
    shared = fixed(arguments)
    varying = [one for one in arguments if one not in (*shared, "-m", "--multirun")]
    points = []
    for point in grid(varying):  # all are read before the first is made
        rest, overrides = overrides_in([*shared, *point])
        settings = settings_of(rest)
        if not settings:
            return 0
        context = context_of(settings, overrides)
        for spec in _specs(settings, context):
            spec.settings(context)
        if settings["out"]:
            settings["out"] = str(Path(str(settings["out"])) / folder_name(context))
        points.append((point, settings, overrides))
    failed = [run(settings, overrides) for _, settings, overrides in points]
    print_sweep([(point, _folder(settings, overrides)) for point, settings, overrides in points])
    return int(any(failed))


def _specs(settings: dict[str, object], context: Context) -> tuple[FigureSpec, ...]:
    figures = settings["figures"]
    return choose(figures if isinstance(figures, list) else str(figures), context.profile)


def as_lists(arguments: list[str]) -> list[str]:
    """Return Hydra's arguments with figures=a,b as a list, not a sweep."""
    return [
        f"{key}=[{value}]" if key == "figures" and "," in value and "[" not in value else argument
        for argument in arguments
        for key, _, value in [argument.partition("=")]
    ]
