"""Loading of a serialised executable onto any device of its kind."""

from __future__ import annotations

import io
import pickle
from typing import Any

import jax
import numpy as np
from jaxlib import xla_client

__all__ = ["load"]


# jax's own `deserialize_and_load` needs the device for which the executable was compiled. An
# executable computes the same on every device of the kind, so its device is replaced during the
# load.
class _Onto(pickle.Unpickler):
    def __init__(self, serialized: bytes, device: Any) -> None:
        super().__init__(io.BytesIO(serialized))
        self._device = device

    def persistent_load(self, pid: tuple[Any, ...]) -> Any:
        kind, *rest = pid
        if kind == "device":
            return self._device
        if kind == "client":
            return self._device.client
        if kind == "exec":
            options = xla_client.CompileOptions()
            options.num_replicas = options.num_partitions = 1
            options.device_assignment = xla_client.DeviceAssignment.create(
                np.array([[self._device.id]])
            )
            return self._device.client.deserialize_executable(
                rest[0],
                executable_devices=xla_client.DeviceList((self._device,)),
                compile_options=options,
            )
        raise pickle.UnpicklingError(f"a serialised executable refers to {kind!r}")


def load(serialized: bytes, in_tree: Any, out_tree: Any, device: Any) -> Any:
    """Return an executable that runs on `device`.

    Args:
      serialized: of `serialize_executable.serialize`, from this user's files only: it can run code.

    Raises:
      Exception: any type, of unknown forms or the runtime's refusal.
    """
    unloaded, flat, no_kwargs = _Onto(serialized, device).load()
    arguments = in_tree.unflatten(flat)
    return jax.stages.Compiled(unloaded.load(), [], arguments, out_tree, no_kwargs=no_kwargs)
