"""Knobs: numbers of the settings' files that can be scaled one at a time.

A result is computed again from a copy of the settings' folder in which one number, or several with
one meaning, is multiplied. All code that reads the settings is thereby covered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from c2c.cost import load_constants
from c2c.errors import SettingError
from c2c.hardware import conf_dir

__all__ = ["Knob", "changed", "chip_knobs", "constant_knobs", "setting_knob"]

type _Entry = tuple[str, tuple[str, ...]]  # a file, and the keys of a number in it
PLATFORM: Final = "gh200"
_PACKAGE: Final = "# @package"  # Hydra's header, a comment with meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One quantity, and the positions of its numbers in the settings' files.

    Attributes:
      name: name in tables.
      entries: file below the settings' folder, and the keys down to the number, for each number.
      value: value of the first number.
      most: largest allowed factor; 1 / value for a share.
    """

    name: str
    entries: tuple[_Entry, ...]
    value: float
    most: float = float("inf")


def constant_knobs() -> tuple[Knob, ...]:
    """Return a knob for each constant of GH200's calibration, in the file that states it."""
    constants = load_constants(PLATFORM)
    found = []
    for name, source in constants.sources.items():
        value = float(getattr(constants, name))
        file = f"calibration/{source.chip or PLATFORM}.yaml"
        found.append(
            Knob(
                name=name,
                entries=((file, ("constants", name, "value")),),
                value=value,
                most=1.0 / value if name.endswith("_efficiency") else float("inf"),
            )
        )
    return tuple(found)


def chip_knobs() -> tuple[Knob, ...]:
    """Return knobs for GH200 and its host: link, HBM, SMs, peak, host memory, disk."""
    chip = f"hardware/{PLATFORM}.yaml"

    def knob(name: str, keys: Sequence[str], more: Sequence[_Entry] = ()) -> Knob:
        entries = (*((chip, tuple(key.split("."))) for key in keys), *more)
        value = _number(_read(conf_dir() / chip), entries[0][1], chip)
        return Knob(name=name, entries=entries, value=value)

    return (
        knob(
            "link rate",
            ("link.datasheet_gbps", "link.measured_gbps", "link.both_directions_gbps"),
        ),
        knob("HBM rate", ("gpu.hbm_gbps",)),
        knob("SMs", ("gpu.sm_count", "gpu.bf16_tflops"), _sms_of_profiles()),  # the peak as well
        knob("tensor-core peak", ("gpu.bf16_tflops",)),
        knob("host memory's rate", ("host.memory_gbps",)),
        knob("disk rate", ("host.disk_gbps",)),
    )


def setting_knob(file: str, key: str, name: str) -> Knob:
    """Return a knob for a number of any settings file, such as `system/moe_infinity.yaml`.

    Raises:
      SettingError: the file has no such number.
    """
    keys = tuple(key.split("."))
    value = _number(_read(conf_dir() / file), keys, file)
    return Knob(name=name, entries=((file, keys),), value=value)


@contextmanager
def changed(knob: Knob, factor: float) -> Iterator[None]:
    """Multiply the knob's numbers within a `with` block, through a copy of the settings' folder.

    Raises:
      SettingError: a factor that is not above 0.
    """
    if not 0 < factor < float("inf"):
        raise SettingError("factor", factor, "a number above 0")
    before = os.environ.get("C2C_CONF")
    with TemporaryDirectory(prefix="c2c-conf-") as temporary:
        folder = Path(temporary) / "conf"
        _copy(conf_dir(), folder, knob, factor)
        os.environ["C2C_CONF"] = str(folder)
        try:
            yield
        finally:
            if before is None:
                del os.environ["C2C_CONF"]
            else:
                os.environ["C2C_CONF"] = before


def _copy(source: Path, folder: Path, knob: Knob, factor: float) -> None:
    """Copy a folder as links, except for files whose numbers differ."""
    files: dict[str, list[tuple[str, ...]]] = {}
    for file, keys in knob.entries:
        files.setdefault(file, []).append(keys)
    _copy_folder(source, folder, files, factor)


def _copy_folder(
    source: Path, folder: Path, files: Mapping[str, Sequence[tuple[str, ...]]], factor: float
) -> None:
    # `files`: files below the folder whose numbers differ, with these numbers' keys
    folder.mkdir()
    for path in source.iterdir():
        below = {
            file.removeprefix(f"{path.name}/"): keys
            for file, keys in files.items()
            if file.startswith(f"{path.name}/")
        }
        if path.name in files:
            text = _scaled(path, files[path.name], factor)
            (folder / path.name).write_text(text, encoding="utf-8")
        elif below:
            _copy_folder(path, folder / path.name, below, factor)
        else:
            (folder / path.name).symlink_to(path)


def _scaled(path: Path, numbers: Sequence[tuple[str, ...]], factor: float) -> str:
    text = path.read_text(encoding="utf-8")
    data = yaml.load(text, _loader())
    for keys in numbers:
        before = _number(data, keys, path.name)
        node = data
        for key in keys[:-1]:
            node = node[int(key) if isinstance(node, list) else key]
        last = keys[-1]
        whole = isinstance(node[last], int)
        node[last] = max(1, round(before * factor)) if whole else before * factor
    head = [line for line in text.splitlines() if line.startswith(_PACKAGE)]
    return "\n".join([*head, yaml.safe_dump(data, sort_keys=False)])


def _number(data: Any, keys: Sequence[str], where: str) -> float:
    node = data
    for key in keys:
        try:
            node = node[int(key) if isinstance(node, list) else key]
        except (KeyError, IndexError, TypeError, ValueError):
            node = None
            break
    if isinstance(node, bool) or not isinstance(node, int | float):
        raise SettingError(f"{where}: {'.'.join(keys)}", node, "a number")
    return float(node)


def _sms_of_profiles() -> list[_Entry]:
    """Return the SMs of each profile of the chip, in each table that has it."""
    return [
        (f"mig_table/{path.name}", (PLATFORM, name, "sm_count"))
        for path in sorted((conf_dir() / "mig_table").glob("*.yaml"))
        for name in _read(path).get(PLATFORM, {})
        if name != "source"
    ]


def _read(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), _loader())


def _loader() -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)
