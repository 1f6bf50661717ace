"""A GPU by its driver, through the public bindings (extra `driver`)."""

from c2c.systems.program.driver.device import Driver

__all__ = ["Driver"]
