"""A shared pool registered with CUDA: kernels of several processes read the same pages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.host_memory import remove_pool, shared_memory_path
from pallas_kernels.hybrid_gemm import hybrid_gemm
from tests.gpu.exact import BACKEND, activations, assert_exact, numbers
from tests.pallas_kernels.host_memory.conftest import created

pytestmark = pytest.mark.gpu

K = N = 2048
ROOT = Path(__file__).parents[2]

OTHER = """
import json, sys
import jax.numpy as jnp, numpy as np
from pallas_kernels.host_memory import SharedPool
from pallas_kernels.hybrid_gemm import hybrid_gemm
from tests.gpu.exact import activations
with SharedPool.open(sys.argv[1]) as pool:
    w = pool.array("w")
    x = jnp.asarray(activations(64, w.shape[0]))
    out = hybrid_gemm(x, w, 1.0, backend=sys.argv[2])
    print(json.dumps(np.asarray(out, np.float32)[:, ::64].tolist()))
    del w, out
"""


@pytest.fixture
def pool_path(request: pytest.FixtureRequest) -> Path:
    path = Path(shared_memory_path(f"c2c-gpu-test-{request.node.name}"))
    if path.exists():
        remove_pool(path)
    return path


def test_kernels_read_the_pages_themselves(pool_path: Path) -> None:
    w = numbers((K, N), "bfloat16", 1, K**-0.5)
    x = activations(64, K)
    with created(pool_path, {"w": w}) as pool:
        host = pool.array("w")
        assert pool.pinned
        assert host.data.unsafe_buffer_pointer() == pool.numpy("w").ctypes.data
        out = hybrid_gemm(jnp.asarray(x), host, 1.0, backend=BACKEND)
        assert_exact(out, x, w)
        jax.block_until_ready(out)
        del host
        pool.close()
        remove_pool(pool_path)


def test_two_processes_read_one_copy(pool_path: Path) -> None:
    w = numbers((K, N), "bfloat16", 1, K**-0.5)
    x = activations(64, K)
    with created(pool_path, {"w": w}) as pool:
        host = pool.array("w")
        mine = np.asarray(hybrid_gemm(jnp.asarray(x), host, 1.0, backend=BACKEND), np.float32)
        answer = subprocess.run(
            [sys.executable, "-c", OTHER, str(pool_path), BACKEND],
            capture_output=True,
            text=True,
            timeout=80,
            cwd=ROOT,
        )
        assert answer.returncode == 0, answer.stderr[-2000:]
        theirs = np.array(json.loads(answer.stdout.splitlines()[-1]), np.float32)
        np.testing.assert_array_equal(theirs, mine[:, ::64])
        del host
        pool.close()
        remove_pool(pool_path)
