"""Products in pieces of columns: the same bits, and a poll after each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.systems.weaver.live.polling_model import InPieces
from c2c.transformer import KvPool, Runner, Shapes, block_elements, load, serve
from c2c.transformer.layers.linear import Reference
from experiments.random_requests import random_requests
from tests.tiers import tiered
from tests.transformer.random_checkpoints import config_of, tensors_of, write

SHAPES = Shapes(rows=(3,), budgets=(32,), width=2)
WIDE = {"hidden_size": 128, "intermediate_size": 384, "vocab_size": 320, "num_hidden_layers": 2}


@pytest.mark.slow
@pytest.mark.parametrize("family", tiered(["qwen3", "llama_biased", "mistral"]))
def test_pieces_give_the_same_tokens_and_logits(family: str, tmp_path: Any) -> None:
    config = config_of(family, **WIDE)
    model = load(write(tmp_path / family, config, tensors_of(config)), "float32")
    asked = random_requests(5, prompt=50, new=20, vocab=320, seed=2)

    def served(executor: Any) -> tuple[list[list[int]], list[bytes]]:
        bits, compute = [], executor.compute

        def noted(*args: Any, **more: Any) -> Any:
            result = compute(*args, **more)
            bits.append(np.asarray(result).tobytes())
            return result

        executor.compute = noted
        *_, done = serve(Runner(executor, SHAPES), asked)
        return done.texts, bits

    def pool() -> KvPool:
        return KvPool(8, block_elements(model.spec), dtype=np.float32)

    plain, _ = served(model.executor(pool()))
    found = {}
    for columns in (0, 128, 64):
        made = InPieces(model.params, model.spec, model.linear, pool(), columns=columns)
        polls = []
        made.poll = lambda: polls.append(None)  # noqa: B023
        found[columns] = *served(made), len(polls)
        assert found[columns][0] == plain
    assert found[0][1] == found[128][1] == found[64][1]
    assert found[0][2] < found[128][2] < found[64][2]


def test_what_cannot_be_cut_is_refused(made: Callable[..., Any]) -> None:
    model = made("llama")[0]
    pool = KvPool(1, block_elements(model.spec), dtype=np.float32)
    with pytest.raises(SettingError, match="columns=100: expected 0, or a multiple of a tile"):
        InPieces(model.params, model.spec, model.linear, pool, columns=100)
    sparse = made("qwen3_moe")[0]
    with pytest.raises(SettingError, match=r"columns=64: expected 0: .* has experts"):
        InPieces(sparse.params, sparse.spec, sparse.linear, pool, columns=64)
    with pytest.raises(SettingError, match="linear"):
        InPieces(model.params, model.spec, Reference(by_layer=False), pool, columns=64)
