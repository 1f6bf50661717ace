"""Every family of models against NumPy in float64: dense ones and mixtures of experts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from c2c.errors import DataError, SettingError
from c2c.models import param_count
from c2c.transformer import Reference, Staged, describe, load, save_model
from c2c.transformer.running.generate import prompt_logits
from tests.models.published import CONFIGS as PUBLISHED
from tests.tiers import tiered
from tests.transformer import family_table
from tests.transformer.plain_model import plain_logits
from tests.transformer.random_checkpoints import CONFIGS, TODAY, tensors_of, write
from tests.transformer.test_forward import TOLERANCE, Batch, prompt

Make = Callable[..., Any]


FAMILIES = (*CONFIGS, *TODAY)
QUICK = ("qwen3_moe", "gemma2", "deepseek_v3", "llama4_text")


@pytest.mark.parametrize("name", tiered(FAMILIES, *QUICK))
def test_logits_chunks_and_rows_are_those_of_plain_float64(name: str, made: Make) -> None:
    """Windows are shorter than the prompt, or (`_wide`) longer."""
    model, config, tensors = made(name)
    assert param_count(model.spec) == sum(each.size for each in tensors.values())
    prompts = [prompt(1), prompt(2, 13)]
    expected = [plain_logits(config, tensors, ids) for ids in prompts]
    assert min(each.std() for each in expected) > 0.5
    assert np.abs(model.logits(prompts[0]) - expected[0]).max() < TOLERANCE
    parts = prompt_logits(model.params, prompts[0], model.spec, model.linear, chunk=8)
    assert np.abs(parts - expected[0]).max() < TOLERANCE
    # two rows of unlike lengths: a chunk of each, then the rest of one beside a decode of the other
    batch = Batch(model, 2)
    tokens, positions = np.zeros((2, 12), int), np.full((2, 12), -1)
    for row, ids in enumerate(prompts):
        tokens[row], positions[row] = ids[:12], np.arange(12)
    logits = batch(tokens, positions)
    for row in range(2):
        assert np.abs(logits[row] - expected[row][:12]).max() < TOLERANCE
    flat = batch([*prompts[0][12:], prompts[1][12]], [*range(12, 21), 12], decode_rows=1)
    assert np.abs(flat[:9] - expected[0][12:]).max() < TOLERANCE
    assert np.abs(flat[9] - expected[1][12]).max() < TOLERANCE


@pytest.mark.parametrize("name", tiered(FAMILIES, "qwen3_moe", "gemma2", slow=6))
def test_greedy_tokens_are_those_of_plain_float64(name: str, made: Make) -> None:
    model, config, tensors = made(name)
    ids = prompt(3, 9)
    found, wanted = model.generate(ids, 8), list[int]()
    for _ in range(8):
        wanted.append(int(plain_logits(config, tensors, [*ids, *wanted])[-1].argmax()))
    assert found == wanted


@pytest.mark.parametrize(
    "name",
    tiered(
        ["mixtral", "mixed", "gemma3_text", "glm4_moe", "deepseek_v3", "llama4_text"], "mixtral"
    ),
)
def test_strategies_agree(name: str, made: Make) -> None:
    ids = prompt(4)
    expected = made(name)[0].logits(ids)
    for strategy in (Reference(by_layer=False), Staged()):
        found = made(name, linear=strategy)[0].logits(ids)
        assert np.abs(found - expected).max() < TOLERANCE / 4


@pytest.mark.parametrize(
    "name",
    tiered(
        ["qwen3", "mixtral", "mixed", "gemma2", "olmo2", "glm4_moe", "deepseek_v3"],
        "gemma2",
        "deepseek_v3",
    ),
)
def test_two_bytes_are_near(name: str, made: Make) -> None:
    ids = prompt(5)
    expected = made(name)[0].logits(ids)
    reference, hybrid = (made(name, "bfloat16", x)[0].logits(ids) for x in ("reference", "hybrid"))
    for found in (reference, hybrid):
        assert np.sqrt(((found - expected) ** 2).mean()) < 0.25 * expected.std()
    # Both round activations to 8 bits in the same places; orders of summation differ.
    assert np.sqrt(((found - reference) ** 2).mean()) < 0.05 * reference.std()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param(*({"attn_logit_softcapping": None}, "gemma2"), marks=pytest.mark.slow),
        pytest.param(*({"final_logit_softcapping": None}, "gemma2"), marks=pytest.mark.slow),
        pytest.param(*({"query_pre_attn_scalar": 64}, "gemma2"), marks=pytest.mark.slow),
        pytest.param(*({"sliding_window": 8}, "gemma2"), marks=pytest.mark.slow),
        ({"rope_local_base_freq": 1e6}, "gemma3_text"),
        pytest.param(*({"partial_rotary_factor": 0.5}, "phi3"), marks=pytest.mark.slow),
        ({"residual_multiplier": 1.0}, "granite"),
        ({"attention_multiplier": 0.1}, "granite"),
        ({"n_group": 1, "topk_group": 1}, "glm4_moe"),
        ({"routed_scaling_factor": 1.0}, "glm4_moe"),
        ({"rope_interleave": False}, "deepseek_v3"),
        ({"rotary_dim": 16}, "minimax_m2"),
        ({"no_rope_layers": [1, 1, 1, 1]}, "llama4_text"),
        ({"use_qk_norm": False}, "llama4_text"),
    ],
)
def test_each_setting_matters(
    change: dict[str, Any], field: str, made: Make, tmp_path: Path
) -> None:
    model, config, tensors = made(field)
    other = load(write(tmp_path / "other", config | change, tensors))
    assert np.abs(other.logits(prompt(6)) - model.logits(prompt(6))).max() > 10 * TOLERANCE


@pytest.mark.parametrize("name", ["deepseek_v2_lite", "qwen3_next_80b"])
def test_what_only_the_simulator_knows_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path, PUBLISHED[name], {"model.norm.weight": np.ones(4, np.float32)})
    with pytest.raises(DataError, match=r"which are computed. Only the simulator supports it"):
        describe(tmp_path)


def test_the_table_in_the_docs_is_the_one_that_the_command_makes() -> None:
    page = (Path(__file__).parents[2] / "docs/evidence/families.md").read_text("utf-8")
    shown = [line.rpartition(" | ")[0] for line in page.splitlines() if line.startswith("| ")]
    for row in family_table.rows(lambda _: ""):
        assert row.rpartition(" | ")[0] in shown
    errors = [float(word) for word in re.findall(r"\b\d\.\de-\d\d\b", page)]
    assert len(errors) >= len(family_table.SMALL)
    assert max(errors) < TOLERANCE


def test_experts_of_one_transposed_tensor(made: Make, tmp_path: Path) -> None:
    """They are saved as they were; positions beyond a chunk and 4-bit experts are refused."""
    model, config, tensors = made("llama4_text")
    folder = write(tmp_path / "whole", config, tensors)
    save_model(model, folder, tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(np.array_equal(again[name], tensors[name]) for name in tensors)
    assert model.context == config["attention_chunk_size"]
    with pytest.raises(SettingError, match="at most the model's context, 64"):
        model.logits(prompt(1, 65))
    with pytest.raises(SettingError, match="quantize='int4': expected None: the experts of a ll"):
        load(folder, quantize="int4", executables=None)


def test_tensors_of_a_later_form_are_refused(made: Make, tmp_path: Path) -> None:
    _, config, tensors = made("phi3")
    split = tensors_of(config | {"model_type": "llama"})
    with pytest.raises(DataError, match=r"missing model.layers.0.self_attn.qkv_proj.weight"):
        load(write(tmp_path, config, split))
    assert "model.layers.0.self_attn.qkv_proj.weight" in tensors
