"""Fine-tuning with Flax: logits and derivatives, there and back, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from c2c.errors import SettingError
from c2c.transformer import Model, load, save_model
from c2c.transformer.tuning import from_nnx, to_nnx
from tests.tiers import tiered
from tests.transformer.plain_model import plain_logits
from tests.transformer.random_checkpoints import CONFIGS, TODAY, config_of, tensors_of, write
from tests.transformer.small_tokenizers import byte_level
from tests.transformer.test_packed_checkpoints import FP8
from tests.transformer.test_packed_checkpoints import made as published_in_fp8

TOLERANCE = 2e-4  # of a float32 logit, as docs/transformer.md says
Make = Callable[..., Any]
FAMILIES = [name for name in (*CONFIGS, *TODAY) if not name.endswith("_wide")]


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 96, shape, np.int32)


def assert_equal(one: Model, other: Model) -> None:
    """Every array to the bit, in the same tree."""
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)


@pytest.mark.parametrize("family", tiered(FAMILIES, "llama", "qwen3"))
def test_logits_are_the_engines_and_weights_come_back_to_the_bit(family: str, made: Make) -> None:
    model, config, tensors = made(family)
    module, ids = to_nnx(model), drawn(1, 2, 21)
    logits = np.asarray(nnx.jit(type(module).__call__)(module, ids))
    assert logits.dtype == np.float32
    for row, mine in zip(ids.tolist(), logits, strict=True):
        assert np.abs(mine - model.logits(row)).max() < TOLERANCE
        assert np.abs(mine - plain_logits(config, tensors, row)).max() < TOLERANCE
    assert_equal(from_nnx(module, model), model)
    assert_equal(from_nnx(nnx.state(module), model), model)


@pytest.mark.parametrize("family", tiered(FAMILIES, "llama", "qwen3"))
def test_the_derivative_is_that_of_plain_float64(family: str, made: Make, tmp_path: Path) -> None:
    """Along a random direction of all weights at once: central differences of NumPy's loss."""
    model, config, tensors = made(family)
    ids, scale = drawn(2, 1, 9), 1e-5
    weight = np.random.default_rng(3).standard_normal((9, 96))
    ways = {name: value.astype(np.float32) for name, value in tensors_of(config, seed=4).items()}
    ways = {n: np.zeros_like(w) if "correction" in n else w for n, w in ways.items()}

    def plain(sign: int) -> float:
        moved = {n: t.astype(np.float64) + sign * scale * ways[n] for n, t in tensors.items()}
        return float((plain_logits(config, moved, ids[0].tolist()) * weight).sum())

    expected = (plain(1) - plain(-1)) / (2 * scale)
    gradient = nnx.jit(nnx.grad(lambda module: (module(ids)[0] * weight).sum()))(to_nnx(model))
    along = load(write(tmp_path / "ways", config, ways), "float32").params
    parts = jax.tree.map(
        lambda g, way: np.vdot(np.float64(g), np.float64(way)),
        jax.tree.leaves(gradient), jax.tree.leaves(along),
    )  # fmt: skip
    size = np.sqrt(sum(np.square(part) for part in parts))
    assert abs(expected) > 1
    assert abs(sum(parts) - expected) < 1e-3 * size


@pytest.mark.parametrize(
    ("family", "dtype"),
    tiered([("llama", "float32"), ("qwen3", "float32"), ("mixtral", "bfloat16")]),
)
def test_the_example_of_the_docs_trains_a_model_that_is_served(
    family: str, dtype: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (repository / "docs" / "transformer.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(import optax\n.*?)```", page, re.DOTALL)
    tokenizer = byte_level()
    config = config_of(family, vocab_size=tokenizer.get_vocab_size(), torch_dtype="float16")
    write(tmp_path / "checkpoint", config, tensors_of(config))
    tokenizer.save(str(tmp_path / "checkpoint" / "tokenizer.json"))
    (tmp_path / "checkpoint" / "tokenizer_config.json").write_text(
        '{"eos_token": "<|end of text|>"}'
    )
    monkeypatch.chdir(tmp_path)
    said: list[float] = []
    names: dict[str, Any] = {
        "batches": [drawn(5, 2, 13)] * 4,
        "print": lambda v: said.append(float(v)),
    }
    exec(example.replace('"float32"', repr(dtype)), names)
    assert len(said) == 4
    assert said[-1] < said[0] - 0.1
    tuned = from_nnx(names["module"], names["model"])
    served = load("tuned", dtype)
    assert_equal(served, tuned)
    ids = drawn(6, 1, 7)
    logits = np.asarray(nnx.jit(type(names["module"]).__call__)(names["module"], ids)[0])
    if dtype == "float32":
        assert np.abs(served.logits(ids[0].tolist()) - logits).max() < TOLERANCE
        assert np.abs(names["model"].logits(ids[0].tolist()) - logits).max() > 0.1
    assert served.generate("The quick", 4) == tuned.generate("The quick", 4)
    written = json.loads(Path("tuned/config.json").read_text())
    assert written["dtype"] == dtype
    assert written == {k: v for k, v in config.items() if k != "torch_dtype"} | {"dtype": dtype}
    texts = {"tokenizer.json", "tokenizer_config.json"}
    assert {p.name for p in Path("tuned").iterdir()} == texts | {"config.json", "model.safetensors"}


def test_arrays_in_host_memory_come_back_to_the_device(made: Make) -> None:
    model, *_ = made("llama")
    state = nnx.state(to_nnx(model))
    (device,) = model.params.final_norm.devices()
    pinned = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    state = jax.device_put(state, pinned)
    back = from_nnx(state, model)
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(back.params)} == {"device"}
    assert_equal(back, model)
    module = to_nnx(model)
    nnx.update(module, state)
    for call in (module, lambda ids: nnx.jit(type(module).__call__)(module, ids)):
        with pytest.raises(SettingError, match="params='weights in host memory': expected floats"):
            call(drawn(1, 1, 3))


@pytest.mark.parametrize("strategy", ["staged", "hybrid"])
def test_weights_in_host_memory_are_refused(strategy: str, made: Make, tmp_path: Path) -> None:
    model, *_ = made("llama", "bfloat16", strategy)
    allowed = r"^linear=.*: expected 'reference': weights in device memory\.$"
    for call in (to_nnx, lambda m: save_model(m, tmp_path, tmp_path / "into")):
        with pytest.raises(SettingError, match=allowed):
            call(model)
    params = made("llama")[0].params
    (device,) = params.final_norm.devices()
    pinned = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    moved = replace(params, final_norm=jax.device_put(params.final_norm, pinned))
    with pytest.raises(SettingError, match="params='weights in host memory': expected floats in"):
        to_nnx(replace(made("llama")[0], params=moved))


@pytest.mark.parametrize(
    ("kind", "dtype"), [("int8", "int8"), ("int4", "int8"), ("fp8", "float8_e4m3fn")]
)
def test_quantised_weights_are_refused(kind: Any, dtype: str, tmp_path: Path) -> None:
    config = config_of("llama", hidden_size=64, intermediate_size=64)
    model = load(write(tmp_path / "from", config, tensors_of(config)), quantize=kind)
    message = (
        f"params='weights of {dtype}': expected floats in device memory, loaded with quantize=No"
    )
    with pytest.raises(SettingError, match=message):
        to_nnx(model)


def test_states_of_other_models_are_refused(made: Make) -> None:
    model, *_ = made("llama")
    qwen3 = nnx.state(to_nnx(made("qwen3")[0]))
    with pytest.raises(
        SettingError, match=r"^params/layers/k_norm='in the state': expected the en"
    ):
        from_nnx(qwen3, model)
    for nothing in (nnx.State({}), nnx.Linear(2, 2, rngs=nnx.Rngs(0))):
        with pytest.raises(SettingError, match=r"^params/embed/data='not in the state': expected"):
            from_nnx(nothing, model)
    state = nnx.state(to_nnx(model))
    short = jax.tree.map(lambda leaf: leaf[:1] if leaf.ndim == 1 else leaf, state)
    with pytest.raises(
        SettingError, match=r"params/final_norm='float32 \[1\]': expected float32 \[32"
    ):
        from_nnx(short, model)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), state)
    with pytest.raises(
        SettingError, match=r"^params/embed/data='bfloat16 \[96, 32\]': expected float"
    ):
        from_nnx(half, model)


@pytest.mark.parametrize("shape", [(5,), (0, 4), (1, 1, 1)])
def test_tokens_of_another_shape_are_refused(shape: tuple[int, ...], made: Make) -> None:
    with pytest.raises(SettingError, match=r"^tokens\.shape=\(.*\): expected \[rows, T\]"):
        to_nnx(made("llama")[0])(np.zeros(shape, np.int32))


def test_a_checkpoint_is_never_overwritten_and_has_its_own_config(
    made: Make, tmp_path: Path
) -> None:
    model, config, tensors = made("llama")
    like = write(tmp_path / "like", config, tensors)
    with pytest.raises(SettingError, match=r"^into=.*: expected a folder that does not exist yet"):
        save_model(model, like, like)
    other = write(tmp_path / "other", config_of("qwen3"), tensors_of(config_of("qwen3")))
    for wrong, allowed in (
        (other, "the folder of the model, "),
        (tmp_path, "a folder with the model's conf"),
    ):
        with pytest.raises(SettingError, match=f"like=.*: expected {allowed}"):
            save_model(model, wrong, tmp_path / "into")
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize("family", ["qwen3", "glm4_moe"])
def test_what_was_widened_is_written_as_published_floats(family: str, tmp_path: Path) -> None:
    config, stored, wide = published_in_fp8(family)
    like = write(tmp_path / "fp8", config | {"quantization_config": FP8}, stored)
    model = load(like, "float32")
    save_model(model, like, tmp_path / "into")
    written = load_file(tmp_path / "into" / "model.safetensors")
    assert written.keys() == wide.keys()
    for name, tensor in wide.items():
        np.testing.assert_array_equal(written[name], tensor)
    assert_equal(load(tmp_path / "into", "float32"), model)


def test_without_flax_one_line_names_the_extra() -> None:
    code = "import sys; sys.modules['flax'] = None; import c2c.transformer.tuning"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    (line,) = [line for line in done.stderr.splitlines() if "needs the extra `engine`" in line]
    assert "pip install -e '.[engine]'" in line
    assert line == done.stderr.splitlines()[-1]
