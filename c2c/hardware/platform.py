"""Platforms: a chip, its host and link."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from c2c.errors import SettingError, check_keys
from c2c.hardware.conf import conf_name, conf_names, read_fields, read_yaml
from c2c.hardware.machine import fill_from_machine
from c2c.hardware.placement import Partition
from c2c.ranges import AboveZero, Count, SomeShare, check_fields, check_value

__all__ = [
    "Gpu",
    "Host",
    "Link",
    "LinkVariant",
    "Platform",
    "Ranks",
    "cpu_platform",
    "link_gbps",
    "load_platform",
    "platform_from_mapping",
    "platforms",
    "scaled",
]

LinkVariant = Literal["datasheet", "measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link between host memory and the GPU; rates in 1e9 bytes a second.

    `datasheet_gbps` and `measured_gbps` are of host to device; without a measurement
    `derived_efficiency` is a comparable link's share of the datasheet's. Public measurements of
    SMs' reads lie between `sm_read_low_gbps` and `sm_read_high_gbps`. `kernels_read` is false if
    kernels need copies.
    """

    name: str
    datasheet_gbps: AboveZero
    measured_gbps: AboveZero | None
    both_directions_gbps: AboveZero
    inflight_bytes_per_sm: AboveZero  # bytes that an SM keeps in flight; limits a slice
    link_latency_s: AboveZero
    derived_efficiency: SomeShare | None = None
    sm_read_low_gbps: AboveZero | None = None
    sm_read_high_gbps: AboveZero | None = None
    kernels_read: bool = True
    remote_gbps: float | None = None  # from another socket's memory; None: not measured
    source: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self, "link")
        if self.both_directions_gbps < self.datasheet_gbps:
            raise SettingError(
                "link.both_directions_gbps", self.both_directions_gbps,
                f"at least datasheet_gbps ({self.datasheet_gbps:g}), which is one direction",
            )  # fmt: skip
        if self.measured_gbps is not None and self.measured_gbps > self.datasheet_gbps:
            raise SettingError(
                "link.measured_gbps", self.measured_gbps,
                f"at most datasheet_gbps ({self.datasheet_gbps:g})",
            )  # fmt: skip

        low, high = self.sm_read_low_gbps, self.sm_read_high_gbps
        if (low is None) != (high is None) or (low or 0) > (high or 0):
            allowed = f"at most sm_read_high_gbps ({high}), or null for both"
            raise SettingError("link.sm_read_low_gbps", low, allowed)

    @property
    def sm_reads(self) -> str:
        """Public range of SMs' reads as text, or "unmeasured".

        >>> load_platform("h200_pcie5").link.sm_reads
        '35 to 51.5 GB/s'
        """
        low, high = self.sm_read_low_gbps, self.sm_read_high_gbps
        if low is None or high is None:
            return "unmeasured"
        if low > self.datasheet_gbps:  # of another link: this one's rate was set
            return "unmeasured"
        return f"{low:g} to {min(high, self.datasheet_gbps):g} GB/s"

    @property
    def measured_is_derived(self) -> bool:
        """True if `measured` is the datasheet's times an efficiency."""
        return self.measured_gbps is None and self.derived_efficiency is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A whole GPU. `bf16_tflops` is the dense tensor-core peak.

    None if unstated: `fp32_tflops` of the CUDA cores, `clock_ghz` (boost), `l2_gbps` (hits),
    `nvlink_gbps` (each way), `price` (relative to an L40S), `usd_per_hour` (instance with one GPU),
    `power_w` (maximum), `idle_w`, and the energy above idle in 1e-12 joules: `pj_per_byte` of HBM,
    `pj_per_flop` of the tensor cores.
    """

    name: str
    sm_count: Count
    hbm_bytes: Count
    hbm_gbps: AboveZero
    bf16_tflops: AboveZero
    l2_bytes: Count
    smem_per_sm_bytes: Count
    fp32_tflops: AboveZero | None = None
    clock_ghz: AboveZero | None = None
    l2_gbps: AboveZero | None = None
    nvlink_gbps: AboveZero | None = None
    price: AboveZero | None = None
    usd_per_hour: AboveZero | None = None
    power_w: AboveZero | None = None
    idle_w: AboveZero | None = None
    pj_per_byte: AboveZero | None = None
    pj_per_flop: AboveZero | None = None
    source: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self, "gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Host memory, and the disk with models.

    `host_factor`: a launch's time over an x86 server's (`c2c.cost.HostTime`); None: not measured.
    """

    memory_bytes: Count
    memory_gbps: AboveZero
    disk_gbps: AboveZero
    host_factor: AboveZero | None = None
    source: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self, "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Equal GPUs that compute each step together, see `c2c.hardware.grouped`.

    Attributes:
      gbps: each way in a collective, 1e9 bytes a second.
      latency_s: of a small collective.
      over_link: whether collectives use the hosts' links, beside weights.
      experts_apart: whether GPUs have whole experts.
    """

    count: int
    gbps: float
    latency_s: float
    over_link: bool = False
    experts_apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A GPU with its host and link, and the names of its MIG layouts.

    `mig` lists layouts of equal slices, the full GPU first; `mig_more` others. `partition` is None
    if the chip cannot be cut. `mig_table` is a file of `conf/mig_table`. With `ranks`, amounts are
    sums of several GPUs.
    """

    name: str
    gpu: Gpu
    host: Host
    link: Link
    mig: tuple[str, ...]
    mig_more: tuple[str, ...] = ()
    mig_table: str = "driver"
    partition: Partition | None = None
    notes: str = ""
    ranks: Ranks | None = None

    def __post_init__(self) -> None:
        if not self.mig or len(set(self.layouts)) != len(self.layouts):
            raise SettingError(
                f"hardware.{self.name}.mig", self.layouts, "at least one name, each once"
            )
        check_fields(self, f"hardware.{self.name}")

    @property
    def layouts(self) -> tuple[str, ...]:
        """Names of all layouts of the platform."""
        return (*self.mig, *self.mig_more)


def platforms() -> tuple[str, ...]:
    """Return the names of the available platforms."""
    return conf_names("hardware")


def load_platform(name: str) -> Platform:
    """Return the platform of `conf/hardware/<name>.yaml`; `cpu` is this machine.

    Raises:
      SettingError: unknown name, or an invalid value; names file and field.
    """
    return platform_from_mapping(read_yaml("hardware", name), where=f"hardware.{name}")


def cpu_platform() -> Platform:
    """Return this machine as a platform; rates are assumptions."""
    return load_platform("cpu")


def platform_from_mapping(data: Mapping[str, Any], *, where: str = "hardware") -> Platform:
    """Build a platform from data as in `conf/hardware/*.yaml`.

    Args:
      data: name, gpu, host, link, mig, mig_more, mig_table, partition and notes.
      where: prefix in errors.

    Raises:
      SettingError: a missing, unknown or invalid field.
    """
    if not isinstance(data, Mapping):
        raise SettingError(where, data, "a mapping")
    keys = (
        "name", "gpu", "host", "link", "mig", "mig_more", "mig_table", "partition", "notes",
    )  # fmt: skip
    check_keys(data, keys, where)
    name = data.get("name")
    if not isinstance(name, str) or not name:
        raise SettingError(f"{where}.name", name, "the platform's name")
    mig = _layout_names(data.get("mig"), f"{where}.mig")
    more = _layout_names(data.get("mig_more") or (), f"{where}.mig_more")
    table = conf_name("mig_table", str(data.get("mig_table", "driver")), f"{where}.mig_table")
    gpu, host, cut = data.get("gpu"), data.get("host"), data.get("partition")
    if name == "cpu":
        gpu, host = fill_from_machine(gpu, host, where)
    try:
        return Platform(
            name=name,
            gpu=read_fields(Gpu, gpu, f"{where}.gpu"),
            host=read_fields(Host, host, f"{where}.host"),
            link=read_fields(Link, data.get("link"), f"{where}.link"),
            mig=mig,
            mig_more=more,
            mig_table=table,
            partition=None if cut is None else read_fields(Partition, cut, f"{where}.partition"),
            notes=" ".join(str(data.get("notes") or "").split()),
        )
    except SettingError as err:
        if err.field.startswith(
            ("gpu.", "host.", "link.", "partition.")
        ):  # raised by the dataclass itself
            raise SettingError(f"{where}.{err.field}", err.value, err.allowed) from err
        raise


def _layout_names(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        names = tuple(value)
        if all(isinstance(name, str) for name in names):
            return names
    raise SettingError(where, value, "a list of names of MIG layouts")


def link_gbps(link: Link, variant: LinkVariant) -> float:
    """Return the link's capacity from host to device, in GB/s.

    Args:
      variant: "datasheet", or "measured", perhaps derived (`measured_is_derived`).

    Raises:
      SettingError: the link has no such variant.
    """
    check_value(variant, LinkVariant, "link_variant")
    if variant == "datasheet":
        return link.datasheet_gbps
    if link.measured_gbps is not None:
        return link.measured_gbps
    if link.derived_efficiency is not None:
        return link.datasheet_gbps * link.derived_efficiency
    raise SettingError("link_variant", variant, f"datasheet, as {link.name} has no measured rate")


def scaled(
    platform: Platform, *, link: float = 1.0, hbm: float = 1.0, sms: float = 1.0
) -> Platform:
    """Return the platform, and MIG slices, with multiplied bandwidths and SMs.

    Capacities, L2 and host memory do not change.

    Args:
      link: of both directions and variants, and of an SM's bytes in flight.
      sms: rounded to whole SMs; also of the tensor-core peak.

    Raises:
      SettingError: a factor is not a number above 0.
    """
    for name, factor in (("link", link), ("hbm", hbm), ("sms", sms)):
        check_value(factor, AboveZero, f"scale.{name}")
    gpu, wire = platform.gpu, platform.link
    sm_count = max(1, round(gpu.sm_count * sms))
    return replace(
        platform,
        gpu=replace(
            gpu,
            sm_count=sm_count,
            bf16_tflops=gpu.bf16_tflops * sm_count / gpu.sm_count,
            fp32_tflops=gpu.fp32_tflops and gpu.fp32_tflops * sm_count / gpu.sm_count,
            hbm_gbps=gpu.hbm_gbps * hbm,
        ),
        link=replace(
            wire,
            datasheet_gbps=wire.datasheet_gbps * link,
            measured_gbps=None if wire.measured_gbps is None else wire.measured_gbps * link,
            both_directions_gbps=wire.both_directions_gbps * link,
            sm_read_low_gbps=wire.sm_read_low_gbps and wire.sm_read_low_gbps * link,
            sm_read_high_gbps=wire.sm_read_high_gbps and wire.sm_read_high_gbps * link,
            inflight_bytes_per_sm=wire.inflight_bytes_per_sm * link,
        ),
    )
