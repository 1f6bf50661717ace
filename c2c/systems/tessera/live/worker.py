"""Worker process whose model's parts are placed over its devices.

python -m c2c.systems.tessera.live.worker <socket> <place> <generation>
"""

from __future__ import annotations

import sys

from c2c.engine.residents import Residents
from c2c.engine.worker import main
from c2c.systems.tessera.live.placed_model import Placed
from c2c.transformer import KvPool, Lease, Model, Runner

__all__ = ["Placing"]


class Placing(Residents):
    """Instances over a worker's devices, by its layout's placement."""

    def _open_pool(self) -> KvPool:
        self._pools = self._open_pools()
        return self._pools[0]

    def _made(self, model: Model, lease: Lease | None = None) -> Runner:  # noqa: ARG002 (the base class passes it)
        parts = [[int(digit) for digit in row] for row in self._setup.layout["parts"].split()]
        over = Placed(
            model.params, model.spec, model.linear, self._pools, parts,
            executables=self._executables,
        )  # fmt: skip
        return Runner(over, self._shapes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Placing))
