"""Quantised checkpoints as published: bytes of weights and caches; names of specs."""

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from c2c.errors import DataError, SettingError
from c2c.models import from_hf_config, kv_bytes_per_token, load_spec, weight_bytes

# Llama-3-8B: weights of q, k, v, o, gate, up and down; rows of output, columns of input.
WEIGHTS = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
ROWS = 32 * (6144 + 4096 + 2 * 14336 + 4096)
MATRICES = 32 * 7
REST = 2 * (8_030_261_248 - WEIGHTS)
KV = 32 * 2 * 8 * 128 * 2

FP8: dict[str, Any] = {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}
INT4: dict[str, Any] = {
    "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128,
}  # fmt: skip


def raw(name: str) -> dict[str, Any]:
    return json.loads((resources.files("c2c.models") / "configs" / f"{name}.json").read_text())


def packed(packing: str, weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors", "format": packing, "ignore": ["lm_head"],
        "config_groups": {"group_0": group}, **more,
    }  # fmt: skip


def modelopt(algorithm: str, **more: Any) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, **more}


def folder(path: Path, model: str, **beside: dict[str, Any]) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(raw(model)))
    for name, content in beside.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("config", "weights", "kv"),
    [
        ({"quant_method": "fp8", "ignored_layers": ["lm_head"]}, WEIGHTS + 4 * MATRICES, KV),
        (modelopt("FP8"), WEIGHTS + 4 * MATRICES, KV),
        (modelopt("fp8_per_channel_per_token"), WEIGHTS + 4 * ROWS, KV),
        (modelopt("FP8_PB_WO"), WEIGHTS + WEIGHTS // 128**2 * 4, KV),
        (modelopt("MXFP8"), WEIGHTS + WEIGHTS // 32, KV),
        (modelopt("NVFP4"), WEIGHTS // 2 + WEIGHTS // 16 + 4 * MATRICES, KV),
        (
            modelopt("NVFP4", group_size=32, kv_cache_scheme={"num_bits": 8, "type": "float"}),
            WEIGHTS // 2 + WEIGHTS // 32 + 4 * MATRICES, KV // 2,
        ),
        (modelopt("FP8", kv_cache_quant_algo="FP8"), WEIGHTS + 4 * MATRICES, KV // 2),
        ({"quant_method": "modelopt", "quantization": FP8}, WEIGHTS + 4 * MATRICES, KV),
        (packed("pack-quantized", INT4), WEIGHTS // 2 + WEIGHTS // 64, KV),
        (
            packed("pack-quantized", INT4 | {"symmetric": False}),
            WEIGHTS // 2 + WEIGHTS // 64 + WEIGHTS // 256, KV,
        ),
        (
            packed("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"},
                   kv_cache_scheme={"num_bits": 8, "type": "float"}),
            WEIGHTS + 2 * ROWS, KV // 2,
        ),
        (
            packed("nvfp4-pack-quantized", {"num_bits": 4, "type": "float",
                                            "strategy": "tensor_group", "group_size": 16}),
            WEIGHTS // 2 + WEIGHTS // 16 + 4 * MATRICES, KV,
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {},
             "kv_cache_scheme": {"num_bits": 8}},
            2 * WEIGHTS, KV // 2,
        ),
    ],
    ids=lambda value: json.dumps(value)[:80] if isinstance(value, dict) else "",
)  # fmt: skip
def test_bytes_are_those_of_the_published_files(
    config: dict[str, Any], weights: int, kv: int
) -> None:
    spec = from_hf_config(raw("llama-3-8b") | {"quantization_config": config}, "m")
    assert weight_bytes(spec) == REST + weights
    assert kv_bytes_per_token(spec) == kv


@pytest.mark.parametrize(
    "entry",
    [
        "re:.*self_attn.*", r"re:^model\.layers\..*self_attn\..*proj$", "*self_attn*", "self_attn",
        "model.layers.*.self_attn*", "model.language_model.layers.*.self_attn",
        [f"model.layers.{k}.self_attn.{m}_proj" for k in range(32) for m in "qkvo"],
        [f"model.layers.{k}.self_attn*" for k in range(32)],
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_unquantised_modules_are_found_by_name_and_pattern(entry: str | list[str]) -> None:
    names = [entry] if isinstance(entry, str) else entry
    spec = from_hf_config(
        raw("llama-3-8b")
        | {"quantization_config": packed("pack-quantized", INT4, ignore=["lm_head", *names])},
        "m",
    )
    attention = 32 * (4096 * 6144 + 4096 * 4096)
    rest = WEIGHTS - attention
    assert weight_bytes(spec) == REST + 2 * attention + rest // 2 + rest // 64


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method='bitsandbytes': expected fp8, mxfp4, awq"),
        (modelopt("W4A8_AWQ"), "quant_algo='W4A8_AWQ': expected one of FP8, "),
        (modelopt("MIXED_PRECISION"), "quantized_layers=None: expected a mapping of modules"),
        ({"quant_method": "modelopt"}, "quant_algo=None"),
        ({"quant_method": "modelopt", "quantization": 3}, "quantization=3: expected a mapping"),
        (modelopt("FP8", kv_cache_quant_algo="NVFP4"), "kv_cache_quant_algo='NVFP4': expected FP8"),
        (packed("dense", INT4), "format='dense': expected one of pack-quantized"),
        (packed("pack-quantized", INT4 | {"num_bits": 3}), "num_bits=3: expected 4 or 8"),
        (packed("pack-quantized", INT4 | {"strategy": "token"}), "strategy='token'"),
        (packed("pack-quantized", INT4 | {"strategy": "block"}), "strategy='block'"),
        (packed("pack-quantized", INT4 | {"type": "other"}), "type='other': expected int or float"),
        (packed("pack-quantized", INT4, config_groups={"a": {}, "b": {}}), r"\['a', 'b'\]: expec"),
        (packed("pack-quantized", INT4, config_groups={"a": 1}), "config_groups="),
        (
            packed("pack-quantized", INT4, config_groups={"a": {"targets": ["re:.*experts.*"]}}),
            r"config_groups\.a\.targets=",
        ),
        (packed("pack-quantized", INT4, sparsity_config={"format": "sparse-24"}), "sparsity_confi"),
        (packed("pack-quantized", INT4, kv_cache_scheme={"num_bits": 4}), "num_bits=4: expected 8"),
        (packed("pack-quantized", INT4, ignore=["re:(a+)+$"]), "a name, or an expression of names"),
    ],
)
def test_an_unknown_quantisation_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        from_hf_config(raw("llama-3-8b") | {"quantization_config": config}, "m")


def test_other_fields_of_a_config_are_read_or_refused() -> None:
    told = {"compression_config": packed("pack-quantized", INT4)}
    assert weight_bytes(from_hf_config(raw("llama-3-8b") | told, "m")) < 5.8e9
    mlx = {"quantization": {"group_size": 64, "bits": 4}}
    with pytest.raises(SettingError, match=r"m\.quantization\.quant_method=None: expected fp8"):
        from_hf_config(raw("llama-3-8b") | mlx, "m")


def test_quantisation_beside_the_config_is_read(tmp_path: Path) -> None:
    told = {"quantization": FP8 | {"kv_cache_quant_algo": "FP8"}, "producer": {"name": "modelopt"}}
    spec = load_spec(folder(tmp_path / "nvidia", "llama-3-70b", hf_quant_config=told))
    assert round(weight_bytes(spec) / 1e8) == 727
    assert kv_bytes_per_token(spec) == 163_840
    gptq = {"bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    awq = {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}
    for name, told in (("quantize_config", gptq), ("quant_config", awq)):
        spec = load_spec(folder(tmp_path / name, "llama-3-8b", **{name: told}))
        assert spec.weights is not None
        assert spec.weights.kind == ("gptq" if name == "quantize_config" else "awq")
        assert weight_bytes(spec) < 5.8e9
    path = folder(tmp_path / "unknown", "llama-3-8b", new_quantization_config={"x": 1})
    with pytest.raises(DataError, match=r"new_quantization_config\.json: it may say that"):
        load_spec(path)
    path = folder(tmp_path / "empty", "llama-3-8b", quant_config={})
    with pytest.raises(SettingError, match=r"quantization_config\.bits=None"):
        load_spec(path)


def test_shared_quantised_configs_have_their_bytes(shared_part: Callable[[str], Path]) -> None:
    configs = shared_part("cases2/simulator/configs")
    for name, gb, kv in (
        ("fp8_beside", 72.7, 163_840),
        ("fp8_per_tensor.json", 9.08, 131_072),
        ("int4_compressed_tensors.json", 5.70, 131_072),
    ):
        spec = load_spec(configs / name)
        assert weight_bytes(spec) / 1e9 == pytest.approx(gb, abs=0.05)
        assert kv_bytes_per_token(spec) == kv


def test_names_are_of_folders_repositories_and_files(tmp_path: Path) -> None:
    cached = tmp_path / "hub" / "models--Qwen--Qwen3-8B"
    snapshot = cached / "snapshots" / "b968826d9c46dd6066d109eabc6255188de91218"
    (cached / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (cached / "blobs" / "4f2a").write_text(json.dumps(raw("llama-3-8b")))
    (snapshot / "config.json").symlink_to("../../blobs/4f2a")
    for path in (snapshot, snapshot / "config.json"):
        assert load_spec(path).name == "Qwen3-8B"
    (tmp_path / "latest").symlink_to(snapshot)
    assert load_spec(tmp_path / "latest").name == "latest"
    mine = folder(tmp_path / "Llama-3.1", "llama-3-8b")
    assert load_spec(mine).name == load_spec(mine / "config.json").name == "Llama-3.1"
    for name in ("x", "Qwen1.5-7B"):
        (mine / f"{name}.json").write_text(json.dumps(raw("llama-3-8b")))
        assert load_spec(mine / f"{name}.json").name == name
