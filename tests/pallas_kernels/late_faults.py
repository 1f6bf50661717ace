"""Faults that only late hardware shows: missing waits, missing fences, slots freed too early.

Each: file, text before and after, tests that must notice. `test_mutations` puts them in.
"""

from __future__ import annotations

_GEMM = "tests/pallas_kernels/gemm/test_contract.py"
_ATTENTION = "tests/pallas_kernels/attention/test_interpret.py"
_GATHER = "tests/pallas_kernels/gather_rows/test_gather_rows.py"
_WOVEN = "tests/pallas_kernels/woven/test_kernels.py"
_THREE, _BITS = "equal_to_float64 and three", "equal_to_float64 and hybrid"
_RACE, _BOUND = "no_race and hybrid", "within_the_bound and prefill"
_READ = "plgpu.wait_smem_to_gmem(0, wait_read_only=True)"
_LAST = "        plgpu.wgmma_wait(0)\n        release(section.length - 1)\n"
_FENCE = "plgpu.commit_smem()\n"

Fault = tuple[str, str, str, str, str]

_GEMM_FAULTS: dict[str, Fault] = {
    "a tile is freed while the product before reads it": (
        "gemm/compute.py",
        "plgpu.wgmma_wait(1)",
        "id(1)",
        _GEMM,
        _RACE,
    ),
    "products add up what tiles hold later": (
        "gemm/compute.py",
        "plgpu.wgmma_wait(1)",
        "id(1)",
        _GEMM,
        _THREE,
    ),
    "the last tile is freed while its product reads it": (
        "gemm/compute.py",
        "        plgpu.wgmma_wait(0)\n",
        "",
        _GEMM,
        _RACE,
    ),
    "sums are read before their products": (
        "gemm/compute.py",
        f"{_LAST}        return acc[...]",
        "        return plgpu.wgmma_accumulator_load(acc, wait_n=None)",
        _GEMM,
        _THREE,
    ),
    "a slot is freed with the product that was just issued": (
        "gemm/compute.py",
        "release(step - 1)",
        "release(step)",
        _GEMM,
        _RACE,
    ),
    "a pass adds to sums on their way": (
        "gemm/compute.py",
        "plgpu.wait_smem_to_gmem(0)\n            if",
        "id(0)\n            if",
        _GEMM,
        _THREE,
    ),
    "a pass adds to sums that have left shared memory": (
        "gemm/compute.py",
        "plgpu.wait_smem_to_gmem(0)\n            if",
        f"{_READ}\n            if",
        _GEMM,
        _THREE,
    ),
    "a CTA ends while its stores read": (
        "gemm/compute.py",
        "    plgpu.wait_smem_to_gmem(0)\n\n\ndef _pass_on",
        "\n\ndef _pass_on",
        _GEMM,
        _BITS,
    ),
    "a staging slot is taken at once": (
        "gemm/epilogue.py",
        "    plgpu.wait_smem_to_gmem(staging.shape[1] - 1, wait_read_only=True)\n",
        "",
        _GEMM,
        _BITS,
    ),
    "a staging slot is taken one store too early": (
        "gemm/epilogue.py",
        "staging.shape[1] - 1, wait",
        "staging.shape[1], wait",
        _GEMM,
        _BITS,
    ),
    "a store of O without a fence": (
        "gemm/epilogue.py",
        f"        {_FENCE}        columns",
        "        columns",
        _GEMM,
        _RACE,
    ),
    "a store of sums without a fence": (
        "gemm/epilogue.py",
        f"            {_FENCE}            emit(slot",
        "            emit(slot",
        _GEMM,
        _RACE,
    ),
    "rows of experts take a slot at once": (
        "gemm/rows.py",
        f"            {_READ}",
        "            id(0)",
        _GEMM,
        "float64 and grouped",
    ),
    "a multicast tile of X is free for one CTA": (
        "gemm/cta.py",
        'ring("x", 1, readers=(own, own), shared=config.asym)',
        'ring("x", 1, readers=(own, own), shared=False)',
        _GEMM,
        "no_race and cluster",
    ),
    "a multicast tile of W is free for one CTA": (
        "gemm/cta.py",
        "readers=(own, all_), shared=True)",
        "readers=(own, all_), shared=False)",
        _GEMM,
        "no_race and cluster",
    ),
    "a CTA ends while its peers read": (
        "gemm/load.py",
        "    cta.w_ring.drain(w_tiles)\n",
        "",
        _GEMM,
        "(no_race or float64) and cluster",
    ),
    "a slot is not waited for": (
        "gemm/cta.py",
        "(lambda: self._at_empty(plgpu.barrier_wait, self.slot(number)))",
        "(lambda: None)",
        _GEMM,
        _RACE,
    ),
    "converted weights without a fence": (
        "gemm/conversion.py",
        f"    {_FENCE}",
        "",
        _GEMM,
        "no_race and quantized",
    ),
    "a step of converted weights ends before its products": (
        "gemm/dequantise.py",
        "        plgpu.wgmma_wait(0)\n",
        "",
        _GEMM,
        "no_race and quantized",
    ),
    "a part of X is freed while products read it": (
        "gemm/dequantise.py",
        "plgpu.wgmma_wait(each)",
        "id(each)",
        _GEMM,
        "no_race and quantized",
    ),
}
_OTHERS: dict[str, Fault] = {
    "attention: a staging slot is taken at once": (
        "attention/online.py",
        "plgpu.wait_smem_to_gmem(how.slots - 1, wait_read_only=True)",
        "id(how)",
        _ATTENTION,
        _BOUND,
    ),
    "attention: a CTA of prefill ends while its stores read": (
        "attention/sm90_prefill.py",
        "    plgpu.wait_smem_to_gmem(0)\n",
        "",
        _ATTENTION,
        _BOUND,
    ),
    "attention: a CTA of decode ends while its stores read": (
        "attention/sm90_decode.py",
        "    plgpu.wait_smem_to_gmem(0)\n",
        "",
        _ATTENTION,
        "within_the_bound and decode",
    ),
    "gather: a slot is loaded while its store reads it": (
        "gather_rows/sm90.py",
        _READ,
        "id(0)",
        _GATHER,
        "gather",
    ),
    "woven: a CTA ends while its stores read": (
        "woven/sm90.py",
        "    plgpu.wait_smem_to_gmem(0)\n",
        "    id(0)\n",
        _WOVEN,
        "a_task and interpret",
    ),
}

LATE_FAULTS = {f"gemm: {name}": fault for name, fault in _GEMM_FAULTS.items()} | _OTHERS
