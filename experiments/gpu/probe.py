"""Probe of the device after a process was lost: adds numbers in a process of its own.

    python -m experiments.gpu.probe

The probe fails if the first device is gone, and exceeds its limit if the device hangs.
"""

from __future__ import annotations

import sys

from experiments.children import gpu_environment, run

LIMIT_S = 45.0


def why_dead(limit_s: float = LIMIT_S) -> str:
    """Return why the device is taken for dead; "" if it answers within the limit."""
    done = run([sys.executable, "-m", "experiments.gpu.probe"], limit_s=limit_s,
               env=gpu_environment())  # fmt: skip
    if done.code is None:
        return f"the device did not add two numbers within {limit_s:.3g} s"
    return f"the device can no longer add numbers: {done.why}" if done.code else ""


def main() -> int:
    """Add numbers on the device; return the exit status."""
    import jax.numpy as jnp

    return int(float(jnp.ones(256).sum()) != 256.0)


if __name__ == "__main__":
    sys.exit(main())
