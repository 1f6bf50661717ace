"""Help of `c2c simulate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import cast, get_type_hints

from omegaconf import DictConfig, OmegaConf

from c2c.config import choices
from c2c.config.schema import RunConf, ScaleConf, SloConf, TimelineConf
from c2c.policies import DECISIONS
from c2c.serving import SystemSpec
from c2c.workloads import WorkloadConfig
from experiments.plain_settings import descriptions, entry, shown

__all__ = ["help_text"]

# Groups of `conf/` and the dataclasses of their settings; None: the files explain themselves.
GROUPS: Mapping[str, type | None] = {
    "hardware": None, "mig": None, "node": None, "catalog": None,
    "workload": WorkloadConfig, "system": SystemSpec,
}  # fmt: skip
NODES: Mapping[str, type] = {"slo": SloConf, "scale": ScaleConf, "timeline": TimelineConf}

HEAD = """\
c2c simulate [option ...] [setting=value ...]

Simulates one serving system on one workload; prints a table and writes a run folder.

  -m, --multirun     a sweep: every combination of values given as a,b,c or range(3)
  --config-dir=DIR   your own settings and policies, searched beside conf/ (docs/howto.md)
  --cfg job          print all settings and run nothing
  --help             print this help
"""


def help_text(cfg: DictConfig) -> str:
    """Return the help for a command line with settings `cfg`."""
    lines = [HEAD, "Groups of settings"]
    meaning = descriptions(RunConf)
    for group in GROUPS:
        chosen = OmegaConf.select(cfg, f"{group}.name")
        lines += entry(f"{group}={chosen}", f"one of {', '.join(choices(group))}")
    lines.append("\nSettings of a run")
    for name in (f.name for f in fields(RunConf)):
        if name not in GROUPS and name not in NODES:
            lines += entry(f"{name}={shown(cfg[name])}", meaning[name])
    for node, schema in NODES.items():
        for name, text in descriptions(schema).items():
            lines += entry(f"{node}.{name}={shown(cfg[node][name])}", text)
    for group, group_schema in GROUPS.items():
        if group_schema is None:
            continue
        lines.append(f"\nSettings of the {group}")
        for name, text in descriptions(group_schema).items():
            if group == "system" and name in DECISIONS:
                policies = f"{text} One of {', '.join(sorted(DECISIONS[name].policies))}."
                node = OmegaConf.select(cfg, f"system.{name}")
                chosen = "null" if node is None else node.get("policy", "null")
                lines += entry(f"system/{name}={chosen}", policies)
            elif is_dataclass(kind := get_type_hints(group_schema)[name]):
                lines += entry(f"{group}.{name}", text)
                for field, note in descriptions(cast("type", kind)).items():
                    value = OmegaConf.select(cfg, f"{group}.{name}.{field}")
                    lines += entry(f"{group}.{name}.{field}={shown(value)}", note)
            else:
                value = OmegaConf.select(cfg, f"{group}.{name}")
                lines += entry(f"{group}.{name}={shown(value)}", text)
    lines.append("\n--cfg job prints the fields of hardware, mig, node, catalog and policies.")
    return "\n".join(lines) + "\n"
