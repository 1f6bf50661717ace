"""Safetensors into parameters: types, shards, damage, placement, memory."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from c2c.errors import DataError, SettingError
from c2c.transformer import Hybrid, Reference, Staged, describe, load
from c2c.transformer.weights.safetensors_file import SafetensorsCheckpoint
from tests.tiers import tiered
from tests.transformer.random_checkpoints import CONFIGS, config_of, shapes_of, tensors_of, write

ROOT = Path(__file__).parents[2]
CONFIG = config_of("llama", num_hidden_layers=2)
IDS = [5, 17, 3, 80]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", CONFIG, tensors_of(CONFIG))


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16", "float16"])
def test_every_type_is_read_into_every_other(stored: Any, wanted: str, tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG, dtype=stored)
    params = load(write(tmp_path / "m", CONFIG, tensors), wanted).params
    name = "model.layers.1.mlp.up_proj.weight"
    kind = np.dtype(getattr(ml_dtypes, wanted, wanted))
    up = np.asarray(params.projections["gate_up"][1])[CONFIG["intermediate_size"] :]
    np.testing.assert_array_equal(up, tensors[name].astype(kind))
    q_rows = np.asarray(params.projections["qkv"][0])[: CONFIG["hidden_size"]]
    q = tensors["model.layers.0.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(q_rows, q.astype(kind))
    np.testing.assert_array_equal(
        np.asarray(params.layers["mlp_norm"])[1],
        tensors["model.layers.1.post_attention_layernorm.weight"].astype(kind),
    )


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_every_tensor_is_used_exactly_once(family: str) -> None:
    from c2c.models import from_hf_config
    from c2c.transformer.layers.layout import layout

    config = config_of(family)
    parts = [part for stack in layout(from_hf_config(config, "m")) for part in stack.parts]
    assert {part.tensor: part.shape for part in parts} == shapes_of(config)
    assert len(parts) == len(shapes_of(config))


@pytest.mark.parametrize("strategy", [Reference(), Reference(by_layer=False), Staged(), Hybrid()])
def test_stacks_are_filled_without_gaps(strategy: Any, tmp_path: Path) -> None:
    """Each element of each array belongs to one part; what is left over is padding."""
    from c2c.models import from_hf_config
    from c2c.transformer.weights.leaves import leaves
    from c2c.transformer.weights.random_source import RandomSource

    for family in CONFIGS:
        spec = from_hf_config(config_of(family), "m")
        source = RandomSource(spec, np.random.default_rng(0))
        for leaf in leaves(spec, strategy.placement, dtype=np.dtype(np.float16), source=source):
            count = np.zeros(leaf.shape, np.int8)
            for part in leaf.parts:
                target = count[part.at][part.first : part.first + part.shape[0]]
                target[..., : part.shape[-1]] += 1
            real = leaf.stack.shape if leaf.layer is None else leaf.stack.shape[1:]
            inside = tuple(map(slice, real))
            assert (count[inside] == 1).all(), leaf.name
            assert count.sum() == np.prod(real)


def test_shards_are_one_checkpoint(folder: Path, tmp_path: Path) -> None:
    sharded = write(tmp_path / "sharded", CONFIG, tensors_of(CONFIG), shards=3)
    np.testing.assert_array_equal(load(sharded).logits(IDS), load(folder).logits(IDS))
    (sharded / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(DataError, match=r"missing model-00002-of-00003.safetensors"):
        load(sharded)


def test_a_tied_head_and_old_rotary_buffers_may_be_stored(tmp_path: Path) -> None:
    config = config_of("qwen3")
    tensors = tensors_of(config)
    plain = load(write(tmp_path / "plain", config, tensors)).logits(IDS)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    np.testing.assert_array_equal(
        load(write(tmp_path / "more", config, tensors)).logits(IDS), plain
    )


@pytest.mark.parametrize("shards", [1, 3])
def test_a_head_of_its_own_values_counts_where_the_config_says_tied(
    tmp_path: Path, shards: int
) -> None:
    untied = config_of("qwen3", tie_word_embeddings=False)
    tensors = tensors_of(untied)
    expected = load(write(tmp_path / "untied", untied, tensors)).logits(IDS)
    folder = write(tmp_path / "tied", config_of("qwen3"), tensors, shards=shards)
    assert not describe(folder).spec.tie_embeddings
    np.testing.assert_array_equal(load(folder).logits(IDS), expected)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    folder = write(tmp_path / "same", config_of("qwen3"), tensors, shards=shards)
    assert describe(folder).spec.tie_embeddings
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1]
    with pytest.raises(DataError, match=r"shapes .*lm_head.weight \[95, 32\] instead of"):
        load(write(tmp_path / "short", config_of("qwen3"), tensors, shards=shards))


def test_tensors_that_do_not_fit_the_config_are_named(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"

    def refused(change: Any, message: str) -> None:
        tensors = tensors_of(CONFIG)
        change(tensors)
        with pytest.raises(DataError, match=message):
            load(write(tmp_path / "bad", CONFIG, tensors))

    refused(lambda t: t.pop(name), rf"missing {name}, which a llama of 2 layers has")
    refused(lambda t: t.update(extra=np.ones(2)[:0].astype(np.float32)), r"extra: in no llama")
    refused(
        lambda t: t.update({name: t[name].T.copy()}), rf"{name} \[32, 16\] instead of \[16, 32\]"
    )
    refused(lambda t: [t.pop(n) for n in list(t) if ".layers." in n], r"missing .* and 13 more")
    for value in (np.nan, np.inf, -np.inf):

        def spoil(t: Any, value: float = value) -> None:
            t[name][7, 3] = value

        refused(spoil, rf"{name} holds NaN or infinity: corrupt")


def rewrite(file: Path, change: Any) -> None:
    """Change the JSON header of a safetensors file."""
    raw = file.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def test_damaged_files_are_refused_before_anything_is_read(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    name = "model.norm.weight"

    def refused(message: str) -> None:
        with pytest.raises(DataError, match=message):
            SafetensorsCheckpoint(folder)
        file.write_bytes(whole)

    for size in (0, 7, 8, 100, len(whole) - 1):
        file.write_bytes(whole[:size])
        refused("truncated")
    file.write_bytes(whole + b"x")
    refused("more than its tensors")
    file.write_bytes(b"\xff" * 64)
    refused("not safetensors")
    file.write_bytes(whole[:8] + b"[" + whole[9:])
    refused("not JSON")

    def set_entry(**fields: Any) -> None:
        rewrite(file, lambda header: header[name].update(fields))

    set_entry(shape=[31])
    refused(rf"{name} has 128 bytes, expected 124")
    set_entry(shape=[-32])
    refused("whole numbers from 0")
    set_entry(dtype="F64")
    refused(rf"{name} is of type F64, expected BF16, F16, F32")
    rewrite(file, lambda header: header[name].pop("dtype"))
    refused(rf"the entry of {name} is damaged")
    rewrite(file, lambda header: header[name].update(data_offsets=[0, 128]))
    refused("damaged")
    file.unlink()
    with pytest.raises(DataError, match=r"no model.safetensors and no model.safetensors.index"):
        SafetensorsCheckpoint(folder)


def test_settings_and_models_that_are_not_supported_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    def refused(message: str, kind: type[Exception] = DataError, **changes: Any) -> None:
        write(tmp_path / "bad", CONFIG | changes, tensors_of(CONFIG))
        with pytest.raises(kind, match=message):
            load(tmp_path / "bad")

    refused(r"model_type='mamba': expected one of", model_type="mamba")
    refused(r"model.bad.model_type='falcon': expected one of .*llama, llama4", model_type="falcon")
    refused(r"activation='mish'", hidden_act="mish")
    other = {"rope_type": "odd", "factor": 4.0, "rope_theta": 1e4}
    refused(r"rope_scaling.kind='odd': expected one of default, linear", rope_parameters=other)
    part = {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}
    refused(r"rotary_fraction=0.5: expected 1.0 if", rope_parameters=part)
    pairs = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 4}
    refused(r"short_factor='1 numbers': expected head_dim / 2 = 4", rope_parameters=pairs)
    with pytest.raises(SettingError, match="dtype='int8': expected one of float32"):
        load(folder, "int8")
    with pytest.raises(SettingError, match="expected bfloat16 or float16 with linear='hybrid'"):
        load(folder, "float32", linear="hybrid")
    with pytest.raises(SettingError, match="linear='fast': expected one of reference, hybrid"):
        load(folder, linear="fast")
    with pytest.raises(SettingError, match=r"pool=.*: expected None"):
        load(folder, pool=tmp_path / "pool")
    with pytest.raises(DataError, match=r"no config.json"):
        load(tmp_path)
    model = load(folder)
    for ids in ([], [96], [-1]):
        with pytest.raises(SettingError, match="ids"):
            model.logits(ids)


@pytest.mark.parametrize("strategy", [Staged(), Hybrid()])
def test_weights_in_a_pool_are_made_once_and_shared(
    strategy: Any, folder: Path, tmp_path: Path
) -> None:
    import gc

    pool = tmp_path / "pool"
    first = load(folder, "bfloat16", linear=strategy, pool=pool)
    made_ns = pool.stat().st_mtime_ns
    second = load(folder, "bfloat16", linear=strategy, pool=pool)
    assert pool.stat().st_mtime_ns == made_ns
    np.testing.assert_array_equal(first.logits(IDS), second.logits(IDS))
    own = load(folder, "bfloat16", linear=strategy)
    np.testing.assert_array_equal(first.logits(IDS), own.logits(IDS))
    del first, second
    gc.collect()


def test_the_report_says_what_is_where(folder: Path) -> None:
    reference = load(folder, "bfloat16").placement().bytes_by_kind
    hybrid = load(folder, "bfloat16", linear="hybrid").placement().bytes_by_kind
    staged = load(folder, "bfloat16", linear="staged").placement().bytes_by_kind
    assert set(reference) == {"device"}
    assert reference["device"] == sum(2 * np.prod(shape) for shape in shapes_of(CONFIG).values())
    assert staged["device"] + staged["pinned_host"] == reference["device"]
    small = sum(2 * np.prod(s) for s in shapes_of(CONFIG).values() if len(s) == 1)
    assert staged["device"] == small  # norms and biases: the embedding is in host memory too
    assert hybrid["device"] == staged["device"]
    assert hybrid["pinned_host"] > staged["pinned_host"]  # padded for TMA


_MEASURE = """
import sys
import jax, jax.numpy as jnp
from pathlib import Path
from c2c.transformer import load

def kilobytes(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])

load(sys.argv[1])  # a small one: what is imported and compiled is not counted
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
model = load(sys.argv[2], sys.argv[3], linear=sys.argv[4])
weights = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
print(kilobytes("VmHWM") - before, weights // 1024)
"""


@pytest.mark.parametrize(
    ("stored", "wanted", "linear"),
    tiered(
        [
            (np.float32, "float32", "reference"),
            (ml_dtypes.bfloat16, "float32", "reference"),
            (ml_dtypes.bfloat16, "bfloat16", "hybrid"),
        ],
        (ml_dtypes.bfloat16, "float32", "reference"),
    ),
)
def test_loading_takes_little_more_memory_than_the_weights(
    stored: Any, wanted: str, linear: str, folder: Path, tmp_path: Path
) -> None:
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("no /proc/self/clear_refs here: the peak of memory cannot be measured")
    wide = config_of(
        "mistral", hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, vocab_size=4096
    )
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.standard_normal(shape, np.float32).astype(stored)
        for name, shape in shapes_of(wide).items()
    }
    big = write(tmp_path / "big", wide, tensors)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(folder), str(big), wanted, linear],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    grown_kb, weights_kb = map(int, done.stdout.split())
    assert weights_kb > 150_000
    assert weights_kb * 0.9 < grown_kb < weights_kb * 1.1
