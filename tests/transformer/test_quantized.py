"""Projections in a few bits: the same model as with the dequantised weights, in fewer bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.models import from_hf_config
from c2c.transformer import Hybrid, Quantization, Reference, Staged, load, random_params
from c2c.transformer.running.generate import prompt_logits
from pallas_kernels.quantized_gemm import dequantize, quantize
from tests.tiers import tiered
from tests.transformer.gguf_files import Builder
from tests.transformer.plain_model import plain_logits
from tests.transformer.random_checkpoints import config_of, shapes_of, tensors_of, write

ROOT = Path(__file__).parents[2]
IDS = np.random.default_rng(0).integers(0, 96, 21).tolist()
TOLERANCE = 2e-4
BITS = {"int8": 8, "fp8": 8, "int4": 4}


def rounded(tensors: dict[str, Any], name: str, *, tied: bool) -> dict[str, Any]:
    """The checkpoint with the weights that `quantize=name` stands for."""
    kinds: dict[str, Any] = {
        "int8": ("int8", None, "float32"),
        "fp8": ("float8_e4m3fn", None, "float32"),
        "int4": ("int4", 32, "bfloat16"),
    }

    def changed(tensor: str, values: np.ndarray) -> np.ndarray:
        head = tensor == "lm_head.weight" or (tied and "embed_tokens" in tensor)
        small = values.ndim < 2 or "embed_tokens" in tensor or tensor.endswith(".gate.weight")
        if small and not head:
            return values
        kind, group, scales = kinds[name]
        kind = "int8" if head and kind == "int4" else kind
        made = quantize(values, kind, group, "nk", scale_dtype=scales)
        return dequantize(made, "nk")

    return {tensor: changed(tensor, values) for tensor, values in tensors.items()}


@dataclass(frozen=True)
class Floats:
    """A checkpoint and what it gives before it is rounded."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Any]
    logits: np.ndarray
    in_two_bytes: np.ndarray


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Floats]:
    @cache
    def make(family: str) -> Floats:
        config = config_of(family)
        tensors = tensors_of(config)
        folder = write(tmp_path_factory.mktemp(family), config, tensors)
        in_two_bytes = load(folder, "bfloat16", linear="hybrid").logits(IDS)
        return Floats(folder, config, tensors, plain_logits(config, tensors, IDS), in_two_bytes)

    return make


@pytest.mark.parametrize(
    ("family", "name"),
    tiered(product(["llama_biased", "qwen3", "mixtral"], BITS), ("mixtral", "int4")),
)
def test_logits_are_those_of_the_dequantised_weights(
    family: str, name: Any, floats: Callable[[str], Floats]
) -> None:
    made = floats(family)
    tied = bool(made.config["tie_word_embeddings"])
    expected = plain_logits(made.config, rounded(made.tensors, name, tied=tied), IDS)
    assert np.abs(made.logits - expected).max() > 100 * TOLERANCE
    for linear in (Reference(), Reference(by_layer=False), Staged()):
        found = load(made.folder, linear=linear, quantize=name).logits(IDS)
        assert np.abs(found - expected).max() < TOLERANCE
    # Kernels take activations of two bytes only.
    found = load(made.folder, "bfloat16", linear="hybrid", quantize=name).logits(IDS)
    assert np.sqrt(((found - expected) ** 2).mean()) < 0.25 * expected.std()
    mine = np.sqrt(((found - expected) ** 2).mean())
    other = np.sqrt(((made.in_two_bytes - expected) ** 2).mean())
    assert mine < other  # it is the rounded model, not the one before rounding


@pytest.mark.parametrize("linear", ["staged", "hybrid"])
@pytest.mark.parametrize("name", BITS)
def test_bytes_in_host_memory(name: Any, linear: str, tmp_path: Path) -> None:
    config = config_of("llama", hidden_size=128, intermediate_size=256)
    folder = write(tmp_path / "model", config, tensors_of(config))
    report = load(folder, "bfloat16", linear=linear, quantize=name).placement()
    weights = sum(
        np.prod(shape) * (8 if tensor == "lm_head.weight" else BITS[name]) // 8
        for tensor, shape in shapes_of(config).items()
        if len(shape) == 2 and "embed" not in tensor
    )
    embedding = 2 * config["vocab_size"] * config["hidden_size"]
    found = report.bytes_by_kind["pinned_host"] - embedding
    # scales, and rows padded to multiples of 64
    assert weights < found < 1.35 * weights
    small = sum(2 * np.prod(s) for s in shapes_of(config).values() if len(s) == 1)
    assert report.bytes_by_kind["device"] == small


def test_a_tied_table_is_held_once(tmp_path: Path) -> None:
    config = config_of("qwen3", hidden_size=64)
    folder = write(tmp_path / "model", config, tensors_of(config))
    for name in (None, "int8", "int4"):
        params = load(folder, "bfloat16", linear="hybrid", quantize=name).params
        assert params.embed.data is params.projections["head"].data


@pytest.mark.parametrize("kind", tiered(["Q4_0", "Q4_1", "Q4_K", "Q8_0"], "Q4_0"))
def test_stored_integers_are_kept_exactly(kind: str, tmp_path: Path) -> None:
    built = Builder("llama", kind).write(tmp_path / "m.gguf")
    floats = load(built.path)
    expected = floats.logits(IDS)
    kept = load(built.path, quantize="stored")
    scale = np.abs(expected).max()
    assert np.abs(kept.logits(IDS) - expected).max() < 1e-5 * scale
    few = kept.placement().bytes_by_kind["device"]
    assert (
        few < (0.2 if kind.startswith("Q4") else 0.3) * floats.placement().bytes_by_kind["device"]
    )
    wide = floats.params.projections["gate_up"][1]
    found = dequantize(kept.params.projections["gate_up"][1], "nk")
    np.testing.assert_allclose(found, wide, rtol=2e-7, atol=1e-6 * np.abs(np.asarray(wide)).max())
    table = load(built.path, "bfloat16", linear="hybrid", quantize="stored")
    assert np.sqrt(((table.logits(IDS) - expected) ** 2).mean()) < 0.1 * expected.std()


def test_a_stack_of_several_formats_is_as_wide_as_the_widest(tmp_path: Path) -> None:
    builder = Builder("llama", "Q4_1")
    from gguf import GGMLQuantizationType

    builder.raw_kinds = {
        "blk.1.attn_v.weight": GGMLQuantizationType.Q8_0,
        "blk.0.ffn_down.weight": GGMLQuantizationType.F16,
        "blk.1.ffn_gate.weight": GGMLQuantizationType.Q6_K,
    }
    path = builder.write(tmp_path / "m.gguf").path
    expected = load(path).logits(IDS)
    kept = load(path, quantize="stored", linear=Reference(by_layer=False))
    stacks = kept.params.projections
    assert stacks["qkv"].kind == "int8"
    assert stacks["qkv"].offsets is not None
    assert stacks["o"].kind == "int4"
    assert stacks["gate_up"].kind == "int8"
    assert stacks["down"].dtype == np.float32  # one of its layers has floats
    # Q6_K is rounded anew, to 8 bits.
    assert np.sqrt(((kept.logits(IDS) - expected) ** 2).mean()) < 0.02 * expected.std()


def test_a_quantised_pool_is_shared(tmp_path: Path) -> None:
    config = config_of("mixtral")
    folder = write(tmp_path / "model", config, tensors_of(config))
    given: dict[str, Any] = {"dtype": "bfloat16", "linear": "hybrid", "quantize": "int4"}
    own = load(folder, **given).logits(IDS)
    for _ in range(2):
        model = load(folder, pool=tmp_path / "pool", **given)
        np.testing.assert_array_equal(model.logits(IDS), own)


@pytest.mark.slow
def test_random_parameters_may_be_quantised() -> None:
    spec = from_hf_config(config_of("qwen3_moe"), "m")
    found = {}
    for quantization in (None, Quantization(kind="int8", group=32)):
        params = random_params(
            spec, np.random.default_rng(0), dtype="bfloat16", placement=Hybrid().placement,
            quantization=quantization,
        )  # fmt: skip
        found[quantization] = prompt_logits(params, IDS, spec, Hybrid())
    floats, integers = found.values()
    assert 0 < np.sqrt(((floats - integers) ** 2).mean()) < 0.2 * floats.std()


def test_what_is_no_quantisation_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", config_of("llama"), tensors_of(config_of("llama")))
    given: Any
    for given, message in (
        ("int2", r"quantize='int2': expected None or one of int8, fp8, int4, stored"),
        ("stored", r"the checkpoint has no quantised projection"),
    ):
        with pytest.raises(SettingError, match=message):
            load(folder, quantize=given)
    for settings, message in (
        ({"kind": "int8", "group": 48}, "group=48: expected None or a multiple of 32"),
        ({"kind": "int3"}, "kind='int3'"),
        ({"kind": "stored", "group": 64}, "group=64"),
        ({"kind": "int8", "scale_dtype": "int8"}, "scale_dtype='int8'"),
    ):
        with pytest.raises(SettingError, match=message):
            Quantization(**settings)


_MEASURE = """
import sys
import jax
from pathlib import Path
from c2c.transformer import load

def kilobytes(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])

given = dict(linear="hybrid", quantize=sys.argv[3])
load(sys.argv[1], "bfloat16", **given)  # what is imported and compiled is not counted
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
model = load(sys.argv[2], "bfloat16", **given)
weights = sum({id(leaf): leaf.nbytes for leaf in jax.tree.leaves(model.params)}.values())
print(kilobytes("VmHWM") - before, weights // 1024)
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = config_of(
        "mistral", hidden_size=1024, intermediate_size=8192, num_hidden_layers=4, vocab_size=4096
    )
    return write(tmp_path_factory.mktemp("wide"), config, tensors_of(config, dtype=np.float16))


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(["int4", "int8"]))
def test_quantising_takes_little_more_memory_than_the_weights(
    name: str, wide: Path, tmp_path: Path
) -> None:
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("no /proc/self/clear_refs here: the peak of memory cannot be measured")
    small = config_of("mistral", hidden_size=64)
    given = write(tmp_path / "small", small, tensors_of(small))
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(given), str(wide), name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    grown_kb, weights_kb = map(int, done.stdout.split())
    # Besides the weights: 64 MB at most in which rows are quantised.
    assert weights_kb * 0.9 < grown_kb < weights_kb * 1.1 + 64 * 1024
