"""Prefixes of this package's names; all other code is compiled as Numba does it."""

from typing import Final

__all__ = ["MODULES", "SYMBOLS"]

MODULES: Final = "c2c."
SYMBOLS: Final = "_ZN3c2c"  # as compiled functions are called
