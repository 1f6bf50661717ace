"""Changes of a chip's MIG layout, and their time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from c2c.errors import SettingError
from c2c.hardware.mig import MigConfig
from c2c.hardware.placement import Partition
from c2c.hardware.platform import Platform, load_platform
from c2c.hardware.slices import Placed, placed

__all__ = ["Reconfiguration", "reconfiguration"]

MEASURED = "gh200"  # its times are used for chips without measured ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfiguration:
    """A change of a chip's layout.

    Attributes:
      kept: instances that go on serving.
      destroyed: idle instances.
      seconds: from first destruction to last creation, without loading.
      carried_from: chip of the measured times, if another; else "".
    """

    kept: tuple[Placed, ...]
    destroyed: tuple[Placed, ...]
    created: tuple[Placed, ...]
    seconds: float
    carried_from: str = ""


def reconfiguration(
    platform: Platform, before: MigConfig | str, after: MigConfig | str
) -> Reconfiguration:
    """Return the instances kept, destroyed and created by a change, and its time.

    Instances with the same profile and start stay. Others change one after another. The whole chip
    has no instances.

    Raises:
      SettingError: no such layout, or an uncut chip.
    """
    if platform.partition is None:
        raise SettingError("hardware", platform.name, "a GPU that can be cut into MIG slices")
    old, new = Counter(placed(platform, before)), Counter(placed(platform, after))
    overlap = old & new
    gone, come = _listed(old - overlap), _listed(new - overlap)
    timed, origin = _times(platform.partition, platform.name)
    return Reconfiguration(
        kept=_listed(overlap),
        destroyed=gone,
        created=come,
        seconds=len(gone) * timed.destroy_s + _creating_s(come, timed),
        carried_from=origin,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    create_s: float
    create_wide_s: float
    create_next_s: float
    destroy_s: float


def _times(partition: Partition, name: str) -> tuple[_Times, str]:
    entries = [partition.create_s, partition.create_wide_s, partition.create_next_s,
             partition.destroy_s]  # fmt: skip
    times_s = [value for value in entries if value is not None]
    if len(times_s) == len(entries):
        create_s, wide_s, next_s, destroy_s = times_s
        return _Times(create_s=create_s, create_wide_s=wide_s, create_next_s=next_s,
                      destroy_s=destroy_s), ""  # fmt: skip
    other = load_platform(MEASURED).partition
    if name == MEASURED or other is None:
        raise SettingError(f"hardware.{name}.partition", None, "times to create and destroy slices")
    return _times(other, MEASURED)[0], MEASURED


def _creating_s(instances: Sequence[Placed], timed: _Times) -> float:
    if not instances:
        return 0.0
    is_wide = any(one.profile.compute_slices > 1 for one in instances)
    first_s = timed.create_wide_s if is_wide else timed.create_s
    return first_s + (len(instances) - 1) * timed.create_next_s


def _listed(instances: Counter[Placed]) -> tuple[Placed, ...]:
    return tuple(sorted(instances.elements(), key=lambda one: (one.start, one.profile.name)))
