"""Compile configurations for an H200 without a GPU and print what the compiler says, as JSON lines.

Run in its own process by `test_ahead_of_time.py`: the compiler reads its settings from the
environment, once. Needs the compiler's wheels (jax-cuda13-pjrt, jax-cuda13-plugin,
nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-nvdisasm), no CUDA driver.
"""

from __future__ import annotations

import collections
import json
import math
import os
import re
import sys
import tempfile
from pathlib import Path

DUMP = Path(tempfile.mkdtemp(prefix="hybrid_gemm_aot"))
os.environ |= {
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "MOSAIC_GPU_DUMP_TO": str(DUMP),
    "MOSAIC_GPU_DUMP_PTX": "1",
    "MOSAIC_GPU_DUMP_PTXAS": "1",
}

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402
from jaxlib.mlir import ir  # noqa: E402

from pallas_kernels.hybrid_gemm import Config, Gemm, choose, shared_bytes  # noqa: E402
from pallas_kernels.hybrid_gemm.api import _launch  # noqa: E402

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 62914560 clock_rate_ghz: 1.98
  device_memory_size: 150754820096 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
runtime_version { major: 13 } platform_name: "CUDA" dnn_version_info { major: 9 minor: 12 }
device_description_str: "NVIDIA H200"
"""
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")


def mark_host(lowered: jax.stages.Lowered, argument: int) -> None:
    """State that an argument lives in host memory; the deviceless target drops that on the way."""
    module = lowered._lowering._hlo
    with module.context:
        main = next(
            op for op in module.body.operations if op.attributes["sym_name"].value == "main"
        )
        marked = []
        for index, attributes in enumerate(main.attributes["arg_attrs"]):
            named = {a.name: a.attr for a in attributes}
            kind = "pinned_host" if index == argument else "device"
            named["mhlo.memory_kind"] = ir.StringAttr.get(kind)
            marked.append(ir.DictAttr.get(named))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(marked)


def report(gemm: Gemm, config: Config, sharding: NamedSharding, rows: int) -> dict[str, object]:
    for path in DUMP.iterdir():
        path.unlink()

    def argument(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)

    traced = _launch.trace(
        argument((rows, gemm.k), gemm.dtype),
        argument(gemm.w_shape, gemm.dtype),
        argument((4,), "int32"),
        gemm=gemm,
        config=config,
        interpret=None,
        columns=gemm.n,
    )
    lowered = traced.lower(lowering_platforms=("cuda",))
    mark_host(lowered, 1)
    compiled = lowered.compile()
    memory = compiled.memory_analysis()
    (ptxas,) = (path.read_text() for path in DUMP.glob("*.ptxas"))
    (ptx,) = (path.read_text() for path in DUMP.glob("*.ptx"))
    (sass,) = (path.read_text() for path in DUMP.glob("*.sass_ctrl"))
    (resources,) = (path.read_text() for path in DUMP.glob("*resources.txt"))
    found = re.search(r"smem_scratch_bytes=(\d+)", resources)
    assert found is not None
    return {
        "cluster": config.cluster,
        "spilled_bytes": [int(n) for n in re.findall(r"(\d+) bytes spill", ptxas)],
        "serialised": "C7512" in ptxas or "serializ" in ptxas.lower(),
        "opcodes": collections.Counter(_OPCODE.findall(sass)),
        "multicasts": ptx.count("multicast::cluster"),
        "shared_bytes": int(found.group(1)),
        "shared_bytes_predicted": shared_bytes(config, gemm),
        "host_bytes": memory.host_argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "w_bytes": gemm.in_itemsize * math.prod(gemm.w_shape),
    }


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    topology = topologies.get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1")
    mesh = topologies.make_mesh(topo=topology, mesh_shape=(1,), axis_names=("d",))
    sharding = NamedSharding(mesh, PartitionSpec())
    for case in map(json.loads, sys.stdin):
        rows, cluster, sms = case.pop("rows"), case.pop("cluster"), case.pop("sms")
        gemm = Gemm(m=-(-rows // 8) * 8, **case)
        config = choose(gemm, sm_count=sms, cluster=cluster)
        print(json.dumps(report(gemm, config, sharding, rows)), flush=True)


if __name__ == "__main__":
    main()
