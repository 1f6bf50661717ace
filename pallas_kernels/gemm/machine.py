"""Rates and sizes of a device, for launch times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from pallas_kernels import tuned_results
from pallas_kernels.gemm.times import Rates
from pallas_kernels.hopper import HOPPER_SMS

DEFAULT_DEVICE = "NVIDIA H200"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Rates and sizes of a device, with source.

    Rates are sustained; _gbps is 1e9 bytes/s in one direction (HBM: read plus written).
    """

    device: str  # jax's device_kind; names the file of tuned results
    sm_count: int
    link_gbps: float  # reads of host memory by the SMs
    hbm_gbps: float
    bf16_tflops: float
    l2_gbps: float  # between L2 and all SMs
    l2_bytes: float
    link_latency_s: float  # of one read of host memory
    copy_gbps: float | None = None  # long copies by the copy engine; None: as link_gbps
    l2_latency_s: float = 6.5e-7  # of one TMA load from the L2, beside its bytes at the port
    port_gbps: float = 119.0  # between one SM and the L2, either way: 64 bytes a clock
    tile_s: float = 2.0e-7  # rounding one output tile: what tensor work waits for
    step_s: float = 1.0e-7  # waiting for and issuing one tile step
    convert_s: float = 1.7e-9  # converting one weight in one thread: three instructions, assumed
    launch_s: float = 3.0e-6
    source: str = "given"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("device", "source") or value is None:
                continue
            low = field.name in _FROM_ZERO
            if not (value >= 0 if low else value > 0):
                allowed = "a number from 0 up" if low else "a number above 0"
                raise ValueError(f"{field.name}={value!r}: expected {allowed}")

    @property
    def rates(self) -> Rates:
        """Rates of our kernels on this device."""
        return Rates(
            sm_flops=self.bf16_tflops * 1e12 / self.sm_count,
            link_bytes_s=self.link_gbps * 1e9,
            hbm_bytes_s=self.hbm_gbps * 1e9,
            sm_store_bytes_s=self.port_gbps * 1e9,
            output_s=self.tile_s,
            launch_s=self.launch_s,
            stores_overlap=True,
        )

    def with_sms(self, sm_count: int) -> Machine:
        """Return the machine for `sm_count` SMs; link and HBM stay."""
        if sm_count == self.sm_count:
            return self
        share = sm_count / self.sm_count
        return replace(
            self,
            sm_count=sm_count,
            bf16_tflops=self.bf16_tflops * share,
            l2_gbps=self.l2_gbps * share,
        )


_FROM_ZERO = ("tile_s", "step_s", "convert_s", "launch_s")

_TENSOR_SHARE = 0.7  # of the dense peak
_HBM_SHARE = 0.8884  # of the datasheet's, as copies on a GH200 have; 0.85 assumed of HBM3e
_L2_GBPS = 10138.0  # 5120 bytes a cycle at 1.98 GHz
_L2_SHARE = 0.9647  # of that: what reads of 8 to 41 MB have on an H200, 9,780 GB/s
_MIB = 2.0**20

_SXM: dict[str, Any] = {
    "sm_count": HOPPER_SMS,
    "link_gbps": 38.0,
    "copy_gbps": 55.04,
    "hbm_gbps": 3350.0 * _HBM_SHARE,
    "bf16_tflops": 989.0 * _TENSOR_SHARE,
    "l2_gbps": _L2_GBPS * _L2_SHARE,
    "l2_bytes": 50 * _MIB,
    "link_latency_s": 1.5e-6,
}
_C2C = {"link_gbps": 327.42, "copy_gbps": 346.0, "link_latency_s": 1.0e-6, "l2_bytes": 60 * _MIB}
_PCIE = (
    "unmeasured: SMs from the datasheet, 0.85 or 0.89 of its HBM and 0.7 of its tensor cores; PCIe "
    "5.0 x16: copies at 55 of 64 GB/s, reads by SMs at 38 (others measured 35 to 52 by host); L2 "
    "as others measured it; latency and fixed costs assumed"
)
_NVLINK = (
    "unmeasured by us: SMs from the datasheet, 0.85 or 0.89 of its HBM, 0.7 of its tensor cores; "
    "NVLink-C2C: reads by SMs at 327 of 450 GB/s, as SymGEMM's printed time says (others measured "
    "328 to 342), copies at 346 (nvbandwidth, its issue 23); L2 as others measured it on an H200; "
    "latency and fixed costs assumed"
)

_DEVICES: dict[str, dict[str, Any]] = {
    "NVIDIA H200": {"hbm_gbps": 4800.0 * 0.85, "l2_bytes": 60 * _MIB, "source": _PCIE},
    "NVIDIA H100 80GB HBM3": {"source": _PCIE},
    "NVIDIA H100 NVL": {"hbm_gbps": 3900.0 * _HBM_SHARE, "source": _PCIE},
    "NVIDIA H100 PCIe": {
        "sm_count": 114,
        "hbm_gbps": 2000.0 * _HBM_SHARE,
        "bf16_tflops": 756.0 * _TENSOR_SHARE,
        "l2_gbps": 6946.0,
        "source": _PCIE,
    },
    "NVIDIA GH200 480GB": _C2C | {"hbm_gbps": 4000.0 * _HBM_SHARE, "source": _NVLINK},
    "NVIDIA GH200 144G HBM3e": _C2C | {"hbm_gbps": 4900.0 * 0.85, "source": _NVLINK},
}

MACHINES: Mapping[str, Machine] = MappingProxyType(
    {kind: Machine(device=kind, **(_SXM | changes)) for kind, changes in _DEVICES.items()}
)
"""Devices by jax's device_kind; rates are sustained ones. Nothing here was measured by us.

`conf/hardware` and `conf/calibration` of c2c have the same numbers, with the source of each
(`tests/contracts/test_rates.py`).
"""

_RATES = tuple(f.name for f in fields(Machine) if f.name not in ("device", "sm_count", "source"))


def machine_for(
    device: str = DEFAULT_DEVICE, *, sm_count: int | None = None, measured: bool = True
) -> Machine:
    """Return a device's rates and sizes: measured, else the datasheet's, else an H200's.

    A MIG slice ("<device> MIG 1g.18gb") has its share, by SMs, of HBM and L2.

    Args:
      device: jax's device_kind.
      sm_count: SMs of device or launch.
    """
    device_kind = max((kind for kind in MACHINES if device.startswith(kind)), key=len, default=None)
    whole = MACHINES[device_kind or DEFAULT_DEVICE]
    source = whole.source if device_kind else f"unknown device, taken to be like {whole.device}"
    machine = replace(whole, device=device, source=source)
    if sm_count is not None:
        machine = machine.with_sms(sm_count)
        if " MIG " in device:
            share = sm_count / whole.sm_count
            machine = replace(
                machine,
                hbm_gbps=whole.hbm_gbps * share,
                l2_bytes=whole.l2_bytes * share,
                source=f"{source}; HBM and L2 by the slice's share of SMs",
            )
    return _measured(machine) if measured else machine


def present_machine() -> Machine:
    """Return `machine_for` jax's default device, without a GPU an H200."""
    import jax

    first: Any = jax.devices()[0]
    if first.platform != "gpu":
        return machine_for()
    return machine_for(first.device_kind, sm_count=int(first.core_count))


def _measured(machine: Machine) -> Machine:
    figures = tuned_results.load(machine.device).machine
    changes: dict[str, Any] = {name: float(figures[name]) for name in _RATES if name in figures}
    whole = figures.get("sm_count", machine.sm_count)
    for name in ("bf16_tflops", "l2_gbps"):
        if name in changes:
            changes[name] *= machine.sm_count / whole
    if not changes:
        return machine
    named = ", ".join(sorted(changes))
    return replace(
        machine,
        **changes,
        source=f"measured: {named} ({figures.get('source', '?')}); else {machine.source}",
    )
