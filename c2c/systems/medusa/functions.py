"""Look-up of an artefact's kernels in a new process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from c2c.systems.medusa.capture import module_fingerprint
from c2c.systems.medusa.ir import KernelRef
from c2c.systems.program import Device, DeviceFault

__all__ = ["Found", "find_functions"]


class Found:
    """Functions by kernel number; `missing`: reasons for others."""

    def __init__(self) -> None:
        self.functions: dict[int, int] = {}
        self.missing: dict[int, str] = {}
        self.modules: dict[int, bytes] = {}  # loaded from stored images


def find_functions(
    device: Device,
    kernels: Sequence[KernelRef],
    images: Mapping[str, bytes],
    triggered: Iterable[int] = (),
) -> Found:
    """Find the functions of kernels."""
    result = Found()
    loaded: dict[str, int] = {}
    hidden = _Hidden(device, triggered)
    for number, kernel in enumerate(kernels):
        try:
            if kernel.source == "image":
                if kernel.where not in loaded:
                    loaded[kernel.where] = device.load_module(images[kernel.where])
                    result.modules[loaded[kernel.where]] = images[kernel.where]
                function = device.get_function(loaded[kernel.where], kernel.name)
            elif kernel.source == "symbol":
                function = _symbol(device, kernel)
            else:
                function = hidden.find(kernel)
            if device.parameter_places(function) != kernel.places:
                raise DeviceFault("has other parameters in this process")
        except DeviceFault as problem:
            result.missing[number] = f"{kernel.name}: {problem}"
            continue
        device.ensure_loaded(function)
        if device.shared_limit(function) != kernel.shared_limit:
            device.set_shared_limit(function, kernel.shared_limit)
        result.functions[number] = function
    return result


def _symbol(device: Device, kernel: KernelRef) -> int:
    function = device.symbol(kernel.where, kernel.name)
    if function is None:
        raise DeviceFault(f"is not a symbol of {kernel.where}")
    return function


class _Hidden:
    def __init__(self, device: Device, triggered: Iterable[int]) -> None:
        self._device = device
        self._functions: dict[tuple[str, str], list[int]] = {}
        for module in sorted({device.function_module(f) for f in triggered}):
            fingerprint = module_fingerprint(device, module)
            for function in device.functions(module):
                name = device.function_name(function)
                self._functions.setdefault((name, fingerprint), []).append(function)

    def find(self, kernel: KernelRef) -> int:
        functions = self._functions.get((kernel.name, kernel.where), [])
        if len(functions) > 1:
            raise DeviceFault("is in two modules that cannot be distinguished")
        if not functions:
            raise DeviceFault("is not in a module that the triggers have loaded")
        return functions[0]
