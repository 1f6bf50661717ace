"""Backends that the present device can run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

Backend = Literal["sm90", "interpret", "reference"]

BACKENDS: tuple[Backend, ...] = get_args(Backend)
"""Fastest first: the order in which "auto" tries them.

sm90: Mosaic GPU kernels (wgmma, TMA) on Hopper. interpret: the same kernels, run step by step on a
CPU; for tests. reference: plain jax.numpy on any device.
"""

_MOSAIC = "jax.experimental.pallas.mosaic_gpu"


class KernelUnavailable(NotImplementedError):
    """Error: no device for a backend, with missing part and alternative."""

    def __init__(self, backend: str, reason: str, instead: tuple[str, ...]) -> None:
        there_is = f"Available here: {', '.join(instead)}." if instead else ""
        super().__init__(f"backend={backend!r}: {reason}. {there_is}".rstrip())
        self.backend = backend
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator's or CPU's properties, for the choice of a backend."""

    platform: str  # jax's word: "gpu", "cpu", "tpu"
    kind: str  # the vendor's name, e.g. "NVIDIA H200"
    compute_capability: tuple[int, int] | None  # NVIDIA's, e.g. (9, 0)
    memory_kinds: frozenset[str]  # e.g. {"device", "pinned_host"}


# Importing this module neither touches a device nor imports jax.
def device() -> Device:
    """Return jax's default device, with jax's backends initialised."""
    import jax

    first = jax.devices()[0]
    return Device(
        platform=first.platform,
        kind=first.device_kind,
        compute_capability=parse_compute_capability(getattr(first, "compute_capability", None)),
        memory_kinds=frozenset(m.kind for m in first.addressable_memories()),
    )


def parse_compute_capability(text: str | None) -> tuple[int, int] | None:
    """Return (major, minor), or None for a device that has none.

    >>> parse_compute_capability("9.0")
    (9, 0)
    >>> parse_compute_capability("gfx942") is None
    True
    """
    major, _, minor = (text or "").partition(".")
    if major.isdecimal() and minor.isdecimal():
        return int(major), int(minor)
    return None


def missing(
    backend: Backend, on: Device, *, load: Callable[[str], object] = importlib.import_module
) -> str:
    """Return why `on` cannot run `backend`; "": it can.

    Args:
      load: imports a module by name.

    Raises:
      ValueError: not in `BACKENDS`.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r}: expected one of {', '.join(BACKENDS)}")
    if backend == "reference":
        return ""
    try:
        load(_MOSAIC)
    except ImportError as error:
        return f"{_MOSAIC} cannot be imported ({error})"
    if backend == "interpret":
        if on.platform != "cpu":
            return f"it runs kernels on a CPU and the default device is {_describe(on)}"
        return ""
    if on.compute_capability is None:
        return f"it needs an NVIDIA GPU of compute capability 9.0 and this is {_describe(on)}"
    if on.compute_capability != (9, 0):
        # Code for sm_90a uses wgmma, which neither older nor newer architectures have.
        return f"its code is for compute capability 9.0 alone and this is {_describe(on)}"
    if "pinned_host" not in on.memory_kinds:
        return f"{_describe(on)} offers no pinned_host memory, where the weights live"
    return ""


def capabilities(on: Device | None = None) -> MappingProxyType[Backend, str]:
    """Return the reason why each backend cannot run; an empty string if it can.

    >>> capabilities()["reference"]
    ''
    """
    on = device() if on is None else on
    return MappingProxyType({backend: missing(backend, on) for backend in BACKENDS})


def require(backend: Backend, on: Device | None = None) -> None:
    """Check that the default device can run `backend`.

    Raises:
      KernelUnavailable: it cannot.
    """
    on = device() if on is None else on
    if reason := missing(backend, on):
        instead = tuple(name for name, lack in capabilities(on).items() if not lack)
        raise KernelUnavailable(backend, reason, instead)


def _describe(on: Device) -> str:
    if on.compute_capability is None:
        return f"{on.kind} ({on.platform})"
    major, minor = on.compute_capability
    return f"{on.kind} ({on.platform}, compute capability {major}.{minor})"
