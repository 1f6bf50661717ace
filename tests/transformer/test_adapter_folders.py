"""PEFT's LoRA folders: logits and tokens are those of merged weights in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from c2c.errors import DataError
from c2c.transformer import describe, load
from tests.tiers import tiered
from tests.transformer.peft_folders import merged, write_adapter
from tests.transformer.plain_model import plain_logits
from tests.transformer.random_checkpoints import config_of, tensors_of, write

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj",
       "gate_up_proj")  # fmt: skip
TOLERANCE = 2e-4


@pytest.mark.parametrize(
    ("family", "linear", "modules"),
    tiered(
        [
            ("phi3", "staged", ALL),
            ("llama_biased", "reference", ALL),
            ("qwen3", "staged", ("q_proj", "v_proj")),
            (
                "mixed",
                "reference",
                ("q_proj", "o_proj", "gate_proj", "down_proj"),
            ),  # one dense layer
        ],
        slow=1,
    ),
)
def test_logits_and_tokens_are_those_of_merged_weights(
    family: str, linear: str, modules: tuple[str, ...], tmp_path: Path
) -> None:
    config = config_of(family)
    tensors = tensors_of(config)
    write(tmp_path / "base", config, tensors)
    by_root = family == "qwen3"
    own = write_adapter(tmp_path / "tune", "base", tensors, modules, use_rslora=by_root)
    whole = merged(tensors, own, by_root=by_root)
    model = load(tmp_path / "tune", "float32", linear=linear)
    ids = np.random.default_rng(1).integers(0, 96, 21).tolist()
    expected = plain_logits(config, whole, ids)
    assert np.abs(expected - plain_logits(config, tensors, ids)).max() > 0.05
    assert np.abs(model.logits(ids) - expected).max() < TOLERANCE
    for token in model.generate(ids, 5):
        logits = plain_logits(config, whole, ids)[-1]
        assert logits[token] > logits.max() - TOLERANCE
        ids.append(token)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3': expected 'LORA'"),
        ({"use_dora": True}, "use_dora=True: expected False"),
        ({"bias": "all"}, "bias='all': expected 'none'"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save=\['lm_head'\]: expected None"),
        ({"r": 0}, "r=0: expected a number above 0"),
        ({"lora_alpha": None}, "lora_alpha=None: expected a number above 0"),
        ({"base_model_name_or_path": "x/nope"}, "base_model_name_or_path='x/nope': expected a"),
    ],
)
def test_other_configs_are_refused(config: dict[str, object], why: str, tmp_path: Path) -> None:
    base = config_of("llama")
    tensors = tensors_of(base)
    write(tmp_path / "base", base, tensors)
    write_adapter(tmp_path / "tune", "base", tensors, ALL, **config)
    with pytest.raises(DataError, match=why):
        describe(tmp_path / "tune")


def test_matrices_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    base, other = config_of("llama"), config_of("llama") | {"hidden_size": 64}
    tensors = tensors_of(base)
    write(tmp_path / "base", base, tensors)
    write_adapter(tmp_path / "wide", "base", tensors_of(other), ALL)
    with pytest.raises(DataError, match=r"q_proj: matrices \(4, 64\) and .* Is .*base its base"):
        load(tmp_path / "wide", "float32")
    write_adapter(tmp_path / "head", "base", tensors, ("lm_head", "q_proj"))
    with pytest.raises(DataError, match=r"lm_head\.lora_A\.weight: no matrix of an adapted module"):
        load(tmp_path / "head", "float32")
