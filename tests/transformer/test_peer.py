"""Random checkpoints that transformers itself makes, where `make peer` has installed it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from c2c.transformer import load

PYTHON = Path(__file__).parents[2] / ".venv-peer/bin/python"
TOLERANCE = 2e-4
CLOSE = 1e-4  # a lead of the best logit that rounding may undo

_MAKE = """
import json, sys
import numpy as np, torch
from transformers import AutoConfig, AutoModelForCausalLM, logging
logging.set_verbosity_error()
torch.set_num_threads(1)
folder, base = sys.argv[1], dict(
    hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
    intermediate_size=40, vocab_size=96, max_position_embeddings=128, eos_token_id=2)
yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
        "rope_theta": 1e4}
cases = {
    "llama": dict(attention_bias=True, mlp_bias=True, rope_parameters=yarn),
    "mistral": dict(sliding_window=7, tie_word_embeddings=True),
    "qwen2": dict(use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen3": dict(head_dim=16, hidden_act="gelu_pytorch_tanh"),
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": dict(head_dim=16, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=8,
                      mlp_only_layers=[0]),
    "gemma2": dict(head_dim=16, query_pre_attn_scalar=24, sliding_window=7, pad_token_id=0,
                   attn_logit_softcapping=4.0, final_logit_softcapping=3.0),
    "gemma3_text": dict(head_dim=16, sliding_window=9, num_hidden_layers=4, pad_token_id=0,
        layer_types=["sliding_attention"] * 2 + ["full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
    "phi3": dict(sliding_window=11, pad_token_id=0, head_dim=16,
                 rope_parameters={"rope_type": "default", "rope_theta": 1e4,
                                  "partial_rotary_factor": 0.75}),
    "olmo2": dict(pad_token_id=0),
    "granite": dict(embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.2,
                    logits_scaling=0.5, attention_bias=True, mlp_bias=True, pad_token_id=0),
    "glm4": dict(head_dim=16, attention_bias=True, pad_token_id=0),
    "glm4_moe": dict(head_dim=16, attention_bias=True, use_qk_norm=True, n_routed_experts=8,
                     n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=8, n_group=4,
                     topk_group=2, routed_scaling_factor=1.7, first_k_dense_replace=1,
                     num_hidden_layers=3, pad_token_id=0),
    "deepseek_v3": dict(num_key_value_heads=4, kv_lora_rank=24, q_lora_rank=20, qk_nope_head_dim=12,
                        qk_rope_head_dim=8, v_head_dim=10, n_routed_experts=8, n_shared_experts=1,
                        num_experts_per_tok=3, moe_intermediate_size=8, n_group=4, topk_group=2,
                        first_k_dense_replace=1, num_hidden_layers=3, pad_token_id=0,
                        rope_parameters={**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}),
    "minimax_m2": dict(head_dim=16, num_local_experts=6, num_experts_per_tok=2, pad_token_id=0,
                       rope_parameters={"rope_type": "default", "rope_theta": 1e4,
                                        "partial_rotary_factor": 0.5}),
    "llama4_text": dict(head_dim=8, num_hidden_layers=4, num_local_experts=4, pad_token_id=0,
                        intermediate_size=16, intermediate_size_mlp=24,
                        interleave_moe_layer_step=2,
                        rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0,
                                         "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                         "original_max_position_embeddings": 16}),
}
for seed, (family, more) in enumerate(cases.items()):
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**base, **more})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            scale = 0.5 if name.endswith("bias") else 1.5 / values.shape[-1] ** 0.5
            drawn = torch.randn(values.shape)
            is_norm = name.endswith("norm.weight")
            values.copy_((0.2 * drawn).exp() if is_norm else scale * drawn)
            if is_norm and family.startswith("gemma"):
                values -= 1  # it adds one
        for name, values in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                values.copy_(0.1 * torch.randn(values.shape))
    model.tie_weights()
    model.save_pretrained(f"{folder}/{family}", max_shard_size="20KB" if seed % 2 else "5GB")
    ids = torch.randint(96, (1, 40))
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits[0].numpy()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32,
                             do_sample=False, eos_token_id=None, pad_token_id=0,
                             return_dict_in_generate=True, output_logits=True)
    best = torch.stack(out.logits)[:, 0].topk(2).values
    np.savez(f"{folder}/{family}.npz", ids=ids[0].numpy(), logits=logits,
             greedy=out.sequences[0, 40:].numpy(), lead=(best[:, 0] - best[:, 1]).numpy())
"""


def test_checkpoints_that_transformers_saves(tmp_path: Path) -> None:
    if not PYTHON.is_file():
        pytest.skip("no .venv-peer: make peer installs torch and transformers")
    done = subprocess.run(
        [PYTHON, "-c", _MAKE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    made = sorted(tmp_path.glob("*.npz"))
    assert len(made) == 16
    for file in made:
        model, peer = load(file.with_suffix("")), np.load(file)
        ids = peer["ids"].tolist()
        assert np.abs(model.logits(ids) - peer["logits"]).max() < TOLERANCE, file.stem
        same = np.array(model.generate(ids, 32)) == peer["greedy"]
        until = 32 if same.all() else int(same.argmin())
        assert until == 32 or peer["lead"][until] < CLOSE, file.stem
