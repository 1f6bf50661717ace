"""Quantisation of a published checkpoint."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from c2c.errors import DataError, SettingError
from c2c.models.json_file import read_json_object
from c2c.models.modules import Modules
from c2c.models.reader import Reader
from c2c.models.spec import ModelSpec, OtherFormat, WeightFormat
from c2c.models.weights import gemms, is_quantised

__all__ = ["FIELDS", "config_files", "quantised", "read_config"]

# Fields of a config.json: transformers', compressed-tensors' first, and MLX's, which is not read.
FIELDS = ("quantization_config", "compression_config", "quantization")

# Files of a folder that quantisers write beside config.json, and their method.
_BESIDE = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq",
           "quant_config.json": "awq"}  # fmt: skip

# Numbers of outputs and inputs that share a scale; 0: all of them.
_MATRIX, _ROW = (0, 0), (1, 0)

_MODELOPT: Mapping[str, WeightFormat] = {
    "FP8": WeightFormat(kind="modelopt", bits=8, block=_MATRIX, kernel="fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": WeightFormat(kind="modelopt", bits=8, block=_ROW, kernel="fp8"),
    "FP8_PB_WO": WeightFormat(kind="modelopt", bits=8, block=(128, 128), kernel="fp8_block"),
    "MXFP8": WeightFormat(kind="modelopt", bits=8, block=(1, 32), scale_bytes=1, kernel="fp8"),
    "NVFP4": WeightFormat(
        kind="modelopt", bits=4, block=(1, 16), scale_bytes=1, matrix_bytes=4, kernel="nvfp4"
    ),
    # the kernels widen these
    "W4A16_NVFP4": WeightFormat(
        kind="modelopt", bits=4, block=(1, 16), scale_bytes=1, matrix_bytes=4
    ),
    "MXFP4": WeightFormat(kind="modelopt", bits=4, block=(1, 32), scale_bytes=1, kernel="mxfp4"),
}
_CACHED = {"FP8": 1, "INT8": 1, "NONE": 0}  # bytes of a cached value; 0: those of the model's type
_PACKED = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
           "nvfp4-pack-quantized", "mxfp4-pack-quantized")  # fmt: skip


_KEPT = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")


def read_config(file: Path) -> dict[str, Any]:
    """Return a config.json's content, with the quantisation of a file beside it.

    Raises:
      DataError: no JSON object, or a quantisation file of unknown name.
    """
    config = read_json_object(file)
    _, *beside = config_files(file)
    for other in () if any(config.get(name) for name in FIELDS) else beside:
        if other.name not in _BESIDE:
            raise DataError(
                str(other),
                f"it may say that the weights are quantised; read are {', '.join(_BESIDE)}",
            )
        quantisation = {"quant_method": _BESIDE[other.name], **read_json_object(other)}
        return config | {"quantization_config": quantisation}
    return config


def config_files(file: Path) -> tuple[Path, ...]:
    """Return a config and its files about quantisation."""
    is_folders = file.name == "config.json"
    return file, *(sorted(file.parent.glob("*quant*.json")) if is_folders else ())


def quantised(spec: ModelSpec, config: object, where: str) -> ModelSpec:
    """Return a spec with its config's quantisation.

    Args:
      config: content of one of its `FIELDS`.

    Raises:
      SettingError: an unsupported quantisation, or a missing or wrong field.
    """
    if not isinstance(config, Mapping):
        raise SettingError(where, config, "a mapping")
    kind, read = config.get("quant_method"), Reader(config, where)
    if kind is None and config.get("quant_algo"):  # ModelOpt's own field alone
        kind = "modelopt"
    exclusions: Any = next((config[name] for name in _KEPT if config.get(name)), ())
    form: WeightFormat | None
    cached, named = _cached(where, config), config.get("quantized_layers")
    if kind == "fp8":
        block = _block(config, where, "weight_block_size")
        form = WeightFormat(
            kind="fp8", bits=8, block=block, kernel="fp8" if block == _MATRIX else "fp8_block",
            scale_bytes=read.whole("scale_bytes", default=4),
        )  # fmt: skip
        exclusions = () if named else exclusions  # which are not of the other format
    elif kind == "mxfp4":
        form = WeightFormat(
            kind="mxfp4", bits=4, block=(1, 32), scale_bytes=1, experts_only=True, kernel="mxfp4"
        )
    elif kind in ("awq", "gptq"):
        bits = read.whole("bits", "w_bit")
        if bits not in (4, 8):
            raise SettingError(f"{where}.bits", bits, "4 or 8")
        size = config.get("group_size", config.get("q_group_size"))
        group = 0 if size == -1 else read.whole("group_size", "q_group_size")
        form = WeightFormat(
            kind=kind, bits=bits, block=(1, group), scale_bytes=2, has_zeros=True,
            input_bytes=4 if kind == "gptq" else 0, kernel="int4" if bits == 4 else "bf16",
        )  # fmt: skip
    elif isinstance(kind, str) and kind.startswith("modelopt"):
        inner = config.get("quantization", config)
        if not isinstance(inner, Mapping):
            raise SettingError(f"{where}.quantization", inner, "a mapping")
        exclusions, named = (
            inner.get("exclude_modules") or exclusions,
            inner.get("quantized_layers"),
        )
        is_mixed = str(inner.get("quant_algo")).upper() == "MIXED_PRECISION"
        form, cached = None if is_mixed else _modelopt(inner, where), _cached(where, inner)
        if is_mixed and not named:
            raise SettingError(f"{where}.quantized_layers", named, "a mapping of modules")
    elif kind == "compressed-tensors":
        form = _compressed(spec, config, where)
    else:
        raise SettingError(
            f"{where}.quant_method", kind, "fp8, mxfp4, awq, gptq, modelopt or compressed-tensors",
            "Use the config of the unquantised model.",
        )  # fmt: skip
    spec = replace(spec, kv_dtype_bytes=cached)
    if form is None and not named:
        return spec
    return _assigned(spec, form, where, exclusions, named or {})


def _assigned(
    spec: ModelSpec, form: WeightFormat | None, where: str, exceptions: Any, named: Any
) -> ModelSpec:
    field = f"{where}.modules_to_not_convert"
    if isinstance(exceptions, str) or not all(isinstance(entry, str) for entry in exceptions):
        raise SettingError(field, exceptions, "a list of names")
    if not isinstance(named, Mapping) or not all(isinstance(v, Mapping) for v in named.values()):
        raise SettingError(f"{where}.quantized_layers", named, "a mapping of mappings")
    wide, formats = Modules(exceptions, spec.family, field), dict[WeightFormat, list[str]]()
    for name, value in named.items():
        if (one := _modelopt(value, f"{where}.quantized_layers.{name}")) is not None:
            formats.setdefault(one, []).append(name)
    apart = [
        (one, Modules(names, spec.family, f"{where}.quantized_layers"))
        for one, names in formats.items()
    ]
    forms_of: dict[str, dict[int, WeightFormat | None]] = {}
    weight = Counter[WeightFormat]()
    for gemm in gemms(replace(spec, weights=None)):
        copies = spec.experts if gemm.kind == "expert" else 1
        for module, n in gemm.parts:
            usual = form if form and is_quantised(form, gemm.kind, module) else None
            here = dict.fromkeys(gemm.layers, usual)
            if usual is not None:
                here |= dict.fromkeys(wide.layers(module, gemm.layers), None)
            for one, names in apart:
                here |= dict.fromkeys(names.layers(module, gemm.layers), one)
            if gemm.kind == "expert" and len(set(here.values())) > 1:
                allowed = f"all {gemm.count} layers or none"
                raise SettingError(field, f"{module} of some layers", allowed)
            forms_of.setdefault(module, {}).update(here)
            for one in filter(None, here.values()):
                weight[one] += gemm.k * n * copies
    main = form or max(weight, key=lambda one: weight[one], default=None)
    if main is None:
        return spec
    others = [
        OtherFormat(module, None if len(some) == len(forms) else some, one)
        for module, forms in forms_of.items()
        for one, some in _layers_of(forms).items()
        # of the usual format only where another is usual for such a module
        if one != main or not form or module == "lm_head"
    ]
    return replace(spec, weights=replace(main, others=tuple(others)))


def _layers_of(
    forms: Mapping[int, WeightFormat | None],
) -> dict[WeightFormat | None, tuple[int, ...]]:
    return {
        one: tuple(layer for layer, other in forms.items() if other == one)
        for one in dict.fromkeys(forms.values())
    }


def _block(config: Mapping[str, Any], where: str, name: str) -> tuple[int, int]:
    block = config.get(name)
    if block is None:
        return _MATRIX
    sizes = block if isinstance(block, list) else []
    if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise SettingError(f"{where}.{name}", block, "two whole numbers above 0, or null")
    return sizes[0], sizes[1]


def _modelopt(config: Mapping[str, Any], where: str) -> WeightFormat | None:
    algorithm = config.get("quant_algo")
    if algorithm is None and config.get("kv_cache_quant_algo"):
        return None  # only the cache
    form = _MODELOPT.get(str(algorithm).upper())
    if form is None:
        raise SettingError(f"{where}.quant_algo", algorithm, f"one of {', '.join(_MODELOPT)}")
    group = config.get("group_size") if form.matrix_bytes else None
    if group is None:
        return form
    return replace(form, block=(1, Reader(config, where).whole("group_size")))


def _cached(where: str, config: Mapping[str, Any]) -> int:
    name = config.get("kv_cache_quant_algo")
    if name is not None:
        if str(name).upper() not in _CACHED:
            raise SettingError(
                f"{where}.kv_cache_quant_algo", name, f"{', '.join(_CACHED)} or null"
            )
        return _CACHED[str(name).upper()]
    scheme = config.get("kv_cache_scheme")
    if not isinstance(scheme, Mapping):  # AutoFP8's "static" has scales, and leaves the choice open
        return _CACHED.get(str(scheme).upper(), 0)
    if scheme.get("num_bits") != 8:
        raise SettingError(f"{where}.kv_cache_scheme.num_bits", scheme.get("num_bits"), "8")
    return 1


def _compressed(spec: ModelSpec, config: Mapping[str, Any], where: str) -> WeightFormat | None:
    groups = config.get("config_groups") or {}
    if not isinstance(groups, Mapping) or not all(isinstance(g, Mapping) for g in groups.values()):
        raise SettingError(f"{where}.config_groups", groups, "a mapping of mappings")
    sparsity = config.get("sparsity_config") or {}
    if not isinstance(sparsity, Mapping) or sparsity.get("format", "dense") != "dense":
        raise SettingError(f"{where}.sparsity_config", sparsity, "none, or format dense")
    if not groups and config.get("kv_cache_scheme"):
        return None
    if len(groups) != 1:
        raise SettingError(f"{where}.config_groups", list(groups), "one group")
    ((name, group),) = groups.items()
    field = f"{where}.config_groups.{name}"
    if group.get("targets") != ["Linear"]:
        raise SettingError(f"{field}.targets", group.get("targets"), "['Linear']")
    packing = group.get("format") or config.get("format")
    if packing not in _PACKED:
        raise SettingError(f"{where}.format", packing, f"one of {', '.join(_PACKED)}")
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise SettingError(f"{field}.weights", weights, "a mapping")
    field = f"{field}.weights"
    read = Reader(weights, field)
    bits, kind, strategy = read.whole("num_bits"), weights.get("type"), weights.get("strategy")
    if bits not in (4, 8):
        raise SettingError(f"{field}.num_bits", bits, "4 or 8")
    if kind not in ("int", "float"):
        raise SettingError(f"{field}.type", kind, "int or float")
    if strategy in ("group", "tensor_group"):
        block = 1, read.whole("group_size")
    elif strategy == "block" and weights.get("block_structure") is not None:
        block = _block(weights, field, "block_structure")
    elif strategy in ("tensor", "channel"):
        block = _MATRIX if strategy == "tensor" else _ROW
    else:
        allowed = "tensor, channel, group, tensor_group, or block with block_structure"
        raise SettingError(f"{field}.strategy", strategy, allowed)
    return WeightFormat(
        kind="compressed-tensors", bits=bits, block=block,
        scale_bytes=1 if (kind, bits) == ("float", 4) else spec.dtype_bytes,
        has_zeros=kind == "int" and weights.get("symmetric") is False,
        input_bytes=4 if weights.get("actorder") == "group" else 0,
        matrix_bytes=4 if strategy == "tensor_group" else 0,
        kernel=_kernel(kind, bits, group.get("input_activations"), block),
    )  # fmt: skip


def _kernel(kind: str, bits: int, inputs: object, block: tuple[int, int]) -> Any:
    if kind == "int":
        return "int4" if bits == 4 else "bf16"
    if bits == 4:
        return "nvfp4" if inputs else "mxfp4"
    if not inputs:
        return "bf16"
    return "fp8_block" if min(block) > 1 else "fp8"
