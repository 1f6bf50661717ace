"""`--help`: every setting, what it means, and its value as it is now.

What a setting means stands once, in the docstring of the dataclass that has it.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast, get_type_hints

from omegaconf import DictConfig, OmegaConf

from c2c.config import choices
from c2c.config.schema import RunConf, ScaleConf, SloConf, TimelineConf
from c2c.policies import DECISIONS
from c2c.serving import SystemSpec
from c2c.workloads import WorkloadConfig

__all__ = ["descriptions", "help_text", "plain_help"]

# Groups of `conf/`, and of which dataclass their settings are; None: the file explains itself.
GROUPS: Mapping[str, type | None] = {
    "hardware": None, "mig": None, "node": None, "catalog": None,
    "workload": WorkloadConfig, "system": SystemSpec,
}  # fmt: skip
NODES: Mapping[str, type] = {"slo": SloConf, "scale": ScaleConf, "timeline": TimelineConf}
LEFT, WIDTH = 34, 100

HEAD = """\
python -m experiments.simulate [option ...] [setting=value ...]

Simulates one serving system on one workload; prints a table and leaves a run folder.

  -m, --multirun     a sweep: every combination of values given as a,b,c or range(3)
  --config-dir=DIR   settings and policies of your own, searched beside conf/ (docs/howto.md)
  --cfg job          print all settings and run nothing
  --help             this
"""


def help_text(cfg: DictConfig) -> str:
    """Return the help for a command line whose settings are `cfg`."""
    lines = [HEAD, "What to simulate"]
    meaning = descriptions(RunConf)
    for group in GROUPS:
        chosen = OmegaConf.select(cfg, f"{group}.name")
        lines += _entry(f"{group}={chosen}", f"one of {', '.join(choices(group))}")
    lines.append("\nHow")
    for name in (f.name for f in fields(RunConf)):
        if name not in GROUPS and name not in NODES:
            lines += _entry(f"{name}={_shown(cfg[name])}", meaning[name])
    for node, schema in NODES.items():
        for name, text in descriptions(schema).items():
            lines += _entry(f"{node}.{name}={_shown(cfg[node][name])}", text)
    for group, found in GROUPS.items():
        if found is None:
            continue
        lines.append(f"\nOf the {group}")
        for name, text in descriptions(found).items():
            if group == "system" and name in DECISIONS:
                policies = f"{text} One of {', '.join(sorted(DECISIONS[name].policies))}."
                node = OmegaConf.select(cfg, f"system.{name}")
                chosen = "null" if node is None else node.get("policy", "null")
                lines += _entry(f"system/{name}={chosen}", policies)
            elif is_dataclass(kind := get_type_hints(found)[name]):
                lines += _entry(f"{group}.{name}", text)
                for field, said in descriptions(cast("type", kind)).items():
                    value = OmegaConf.select(cfg, f"{group}.{name}.{field}")
                    lines += _entry(f"{group}.{name}.{field}={_shown(value)}", said)
            else:
                value = OmegaConf.select(cfg, f"{group}.{name}")
                lines += _entry(f"{group}.{name}={_shown(value)}", text)
    lines.append(
        "\nFields of hardware, mig, node, catalog and of policies: --cfg job shows all of them."
    )
    return "\n".join(lines) + "\n"


def descriptions(schema: type) -> dict[str, str]:
    """Return what docstrings of a dataclass and its bases say of its fields, in their order."""
    found: dict[str, str] = {}
    for each in reversed(schema.__mro__):
        found |= _entries((inspect.getdoc(each) or "").partition("Attributes:\n")[2])
    return {f.name: found.get(f.name, "") for f in fields(schema)}


def plain_help(schema: type) -> str:
    """Return the help of a command with one dataclass of settings: its module's text, and they."""
    defaults = OmegaConf.structured(schema)
    lines = [sys.modules[schema.__module__].__doc__ or "", "Settings, as name=value:"]
    for name, text in descriptions(schema).items():
        lines += _entry(f"{name}={_shown(defaults[name])}", text)
    return "\n".join(lines)


def _entries(section: str) -> Iterator[tuple[str, str]]:
    name, text = "", ""
    for line in section.splitlines():
        if started := re.match(r"  (\w+): (.*)", line):
            if name:
                yield name, text
            name, text = started[1], started[2]
        elif line.strip():
            text += " " + line.strip()
    if name:
        yield name, text


def _entry(setting: str, text: str) -> list[str]:
    plain = re.sub(r"`([^`]*)`", r"\1", text)
    body = textwrap.wrap(plain, WIDTH - LEFT - 2) or [""]
    head = f"  {setting}"
    if len(head) > LEFT:
        return [head, *(" " * (LEFT + 2) + line for line in body)]
    first = (head.ljust(LEFT + 2) + body[0]).rstrip()
    return [first, *(" " * (LEFT + 2) + line for line in body[1:])]


def _shown(value: Any) -> str:
    if OmegaConf.is_config(value):
        plain = OmegaConf.to_container(value)
        return "{}" if plain == {} else str(plain).replace("'", "")
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
