"""GPUs and MIG instances, and workers' binding to them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from c2c.engine.messages import Bound
from c2c.errors import DataError, SettingError

__all__ = ["Device", "binding", "bound_to", "check_seen", "find_devices", "free_bytes", "pick"]

_CPU_DEVICES = "--xla_force_host_platform_device_count="
_ROUNDING = 0.02  # share of memory that a driver may reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU or a MIG instance.

    Attributes:
      sm_count: SMs of a MIG instance, else None.
      parent: UUID of a MIG instance's GPU.
    """

    uuid: str
    name: str
    memory_bytes: int
    sm_count: int | None
    parent: str | None


def find_devices() -> tuple[Device, ...]:
    """Return this machine's devices: MIG instances of a GPU in MIG mode, else itself.

    Raises:
      DataError: no driver answers.
    """
    with _nvml() as nvml:
        devices: list[Device] = []
        for number in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(number)
            if _is_mig(nvml, gpu):
                devices += _instances(nvml, gpu)
            else:
                devices.append(_device(nvml, gpu, parent=None))
        return tuple(devices)


@contextmanager
def _nvml() -> Iterator[Any]:
    try:
        import pynvml
    except ImportError:
        raise DataError("nvidia-ml-py", "is not installed: pip install -e '.[engine]'") from None
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            with suppress(pynvml.NVMLError):  # all is read by now
                pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise DataError("NVML", f"does not answer ({error})") from None


def _is_mig(nvml: Any, gpu: Any) -> bool:
    try:
        now, _after_reset = nvml.nvmlDeviceGetMigMode(gpu)
    except nvml.NVMLError_NotSupported:
        return False
    return bool(now == nvml.NVML_DEVICE_MIG_ENABLE)


def _instances(nvml: Any, gpu: Any) -> Iterator[Device]:
    parent = _text(nvml.nvmlDeviceGetUUID(gpu))
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
            yield _device(nvml, instance, parent=parent)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue  # no instance at this index, or it is gone


def _device(nvml: Any, handle: Any, *, parent: str | None) -> Device:
    sms = None
    if parent is not None:
        sms = int(nvml.nvmlDeviceGetAttributes_v2(handle).multiprocessorCount)
    return Device(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        sm_count=sms,
        parent=parent,
    )


def free_bytes(device: Device) -> int:
    """Return a device's free bytes.

    Raises:
      DataError: no driver answers.
    """
    with _nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).free)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def pick(
    devices: Sequence[Device], workers: int, uuids: Sequence[str] | None, *, per_worker: int = 1
) -> tuple[Device, ...]:
    """Return the devices of all workers, in order.

    Args:
      uuids: in order; None: the first ones.
      per_worker: devices of a worker.

    Raises:
      SettingError: a UUID is unknown or repeated, devices do not fit, or a worker would have
        several MIG instances (CUDA shows one).
    """
    by_uuid = {device.uuid: device for device in devices}
    if uuids is None:
        chosen = tuple(devices[: workers * per_worker])
    else:
        for uuid in uuids:
            if uuid not in by_uuid:
                raise SettingError(
                    "devices", uuid, f"one of {', '.join(by_uuid) or '(none found)'}"
                )
        if len(set(uuids)) < len(uuids):
            raise SettingError("devices", list(uuids), "different devices")
        chosen = tuple(by_uuid[uuid] for uuid in uuids)
    if len(chosen) != workers * per_worker:
        for_each = f"one for {'each device' if per_worker == 1 else f'{per_worker} devices'}"
        raise SettingError("workers", workers, f"{len(chosen) // per_worker}, {for_each}")
    instances = [device.uuid for device in chosen if device.parent is not None]
    if per_worker > 1 and instances:
        raise SettingError("devices", instances, f"whole GPUs with {per_worker} devices a worker")
    if len({(device.memory_bytes, device.sm_count) for device in chosen}) > 1:
        sizes = ", ".join(f"{d.uuid} {d.memory_bytes} B, {d.sm_count} SMs" for d in chosen)
        raise SettingError("devices", sizes, "devices of one size")
    return chosen


# NVML is only read. A worker's process starts with its UUIDs in `CUDA_VISIBLE_DEVICES`, so that it
# sees no other worker's device.
def binding(bound: Sequence[Device], devices: int = 1) -> Mapping[str, str]:
    """Return the environment that binds a process to devices."""
    if bound:
        seen = ",".join(device.uuid for device in bound)
        return {"CUDA_VISIBLE_DEVICES": seen, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if devices == 1:
        return {}
    return {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {_CPU_DEVICES}{devices}".strip()}


def bound_to(bound: Sequence[Device]) -> tuple[Bound, ...]:
    """Return descriptions of devices for the worker's `Setup`."""
    return tuple(
        Bound(uuid=d.uuid, memory_bytes=d.memory_bytes, sm_count=d.sm_count) for d in bound
    )


def check_seen(planned: Sequence[Bound], seen: Sequence[Any] | None = None) -> None:
    """Check that this process sees exactly its devices."""
    if seen is None:
        import jax

        seen = jax.devices()
    if len(seen) != len(planned) or any(device.platform != "gpu" for device in seen):
        names = ", ".join(f"{d.platform}:{d.id}" for d in seen) or "nothing"
        named = ", ".join(bound.uuid for bound in planned)
        expected = "this GPU" if len(planned) == 1 else "these GPUs"
        raise DataError(named, f"the worker sees {names}, expected {expected}")
    for bound, device in zip(planned, seen, strict=True):
        _check_one(bound, device)


def _check_one(planned: Bound, seen: Any) -> None:
    sms = getattr(seen, "core_count", None)
    if planned.sm_count is not None and sms is not None and sms != planned.sm_count:
        raise DataError(planned.uuid, f"the worker sees {sms} SMs, expected {planned.sm_count}")
    limit = (seen.memory_stats() or {}).get("bytes_limit")
    if limit is not None and limit > (1 + _ROUNDING) * planned.memory_bytes:
        raise DataError(
            planned.uuid, f"the worker may use {limit} B, the device has {planned.memory_bytes} B"
        )
