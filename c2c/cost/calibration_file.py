"""Writer of `conf/calibration/*.yaml`."""

import textwrap
from collections.abc import Mapping

from c2c.atomic import write_text
from c2c.cost.constants import Source, calibration_path

__all__ = ["as_yaml", "store_constants", "yaml_float"]

_HEAD = "constants:\n"
_WIDTH = 92


def store_constants(name: str, values: Mapping[str, float], sources: Mapping[str, Source]) -> None:
    """Write constants into their file; the text before `constants:` stays.

    Args:
      values: of all constants; carried ones are not written.
    """
    path = calibration_path(name)
    head = path.read_text(encoding="utf-8").partition(_HEAD)[0]
    write_text(path, head + as_yaml(values, sources))


def as_yaml(values: Mapping[str, float], sources: Mapping[str, Source]) -> str:
    """Return a calibration file's `constants` section."""
    lines = [_HEAD.rstrip()]
    for name, source in sources.items():
        lines.append(f"  {name}:")
        if source.kind != "carried":
            lines.append(f"    value: {yaml_float(values[name])}")
        lines += ["    source:", f"      kind: {source.kind}"]
        if source.chip:
            lines.append(f"      chip: {source.chip}")
        lines += _folded("why", source.why)
        if source.claims:
            lines.append(f"      claims: [{', '.join(source.claims)}]")
        if source.rows:
            lines += _folded("rows", source.rows)
        if source.held_out:
            lines += _folded("held_out", source.held_out)
    return "\n".join(lines) + "\n"


def _folded(key: str, text: str) -> list[str]:
    # indented text always folds: it may hold colons and quotes
    return [
        f"      {key}: >-",
        *(f"        {line}" for line in textwrap.wrap(" ".join(text.split()), _WIDTH)),
    ]


def yaml_float(value: float) -> str:
    """Format a number so that YAML 1.1 reads a float.

    >>> yaml_float(3e-06), yaml_float(0.25), yaml_float(2.0)
    ('3.0e-06', '0.25', '2.0')
    """
    digits, exponent, power = f"{value:.9g}".partition("e")
    return (digits if "." in digits else f"{digits}.0") + exponent + power
