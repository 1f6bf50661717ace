"""NVIDIA GPUs through their driver's public Python bindings (extra `driver`)."""

from c2c.systems.program.driver.device import Driver

__all__ = ["Driver"]
