"""Reproduce figures and tables, then print how many claims agree and write a report.

    c2c reproduce figures=all profile=quick
    c2c reproduce figures=fig4,table1 link_variant=datasheet out=runs/try

Results: runs/reproduce/<profile>/<figure>/ (Parquet, PNG, SVG, config), fidelity.json,
index.html. Figures whose configuration, code and data have not changed are kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf

from c2c.errors import SettingError
from c2c.hardware import conf_dir
from c2c.workloads import shared_dir
from experiments.children import workers_of
from experiments.command import command
from experiments.figure import PROFILES, Context
from experiments.sweeping import check_arguments

SEEDS = {"quick": (0, 1, 2), "full": (0, 1, 2, 3, 4)}
CLAIMS = ("summary", "compared", "all")


def context_of(settings: dict[str, object]) -> Context:
    """Return the settings of all figures from the configuration.

    Raises:
      SettingError: a value that is not allowed.
    """
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
        found = shared_dir() / "traces"
        folder = found if found.is_dir() else None
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
    )


def run(settings: dict[str, object]) -> int:
    """Make the figures and the report; return the exit status, 1 if a figure failed, else 0."""
    context = context_of(settings)
    if settings["claims"] not in CLAIMS:
        raise SettingError("claims", settings["claims"], f"one of {', '.join(CLAIMS)}")
    workers = workers_of(settings["workers"], "workers")
    # matplotlib and the simulator are imported only after the settings are validated
    from experiments.figure import choose
    from experiments.reproduce.run import reproduce

    figures = settings["figures"]
    specs = choose(figures if isinstance(figures, list) else str(figures), context.profile)
    out = (
        Path(str(settings["out"]))
        if settings["out"]
        else Path("runs/reproduce") / folder_name(context)
    )
    outcomes, _ = reproduce(
        specs,
        context,
        out,
        resume=bool(settings["resume"]),
        overwrite=bool(settings["overwrite"]),
        claims=str(settings["claims"]),
        workers=workers,
    )
    failed = [o.name for o in outcomes if o.error]
    print(f"report: {out / 'index.html'}")
    if settings["claims"] == "summary":
        print("each claim: the same command with claims=compared, or claims=all")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def folder_name(context: Context) -> str:
    """Return the name of the results' folder, different for each profile, link and seeds."""
    link = "" if context.link_variant == "measured" else f"_{context.link_variant}"
    usual = context.seeds == SEEDS[context.profile]
    seeds = "" if usual else "_s" + "-".join(str(seed) for seed in context.seeds)
    return context.profile + link + seeds


def settings_of(arguments: list[str]) -> dict[str, object]:
    """Return the settings of a command line.

    The figures themselves run outside Hydra's main, because they compose configurations.
    """
    found: dict[str, object] = {}

    @hydra.main(config_path=str(conf_dir()), config_name="reproduce", version_base="1.3")
    def keep(cfg: DictConfig) -> None:
        settings = OmegaConf.to_container(cfg, resolve=True)
        assert isinstance(settings, dict)
        found.update({str(k): v for k, v in settings.items()})

    if wrong := [a for a in arguments if a in ("-m", "--multirun")]:
        raise SettingError("option", wrong[0], "no sweep", "Name figures: figures=fig4,fig5.")
    check_arguments(arguments, single="out")
    sys.argv[1:] = as_lists(arguments)
    keep()
    return found


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit status. See the module's docstring."""

    def work() -> int:
        settings = settings_of(arguments)
        # empty after options such as --help, which Hydra answers
        return run(settings) if settings else 0

    return command(work, arguments)


def as_lists(arguments: list[str]) -> list[str]:
    """Return Hydra's arguments with figures=a,b as a list, which Hydra would sweep over."""
    return [
        f"{key}=[{value}]" if key == "figures" and "," in value and "[" not in value else argument
        for argument in arguments
        for key, _, value in [argument.partition("=")]
    ]
