"""A model whose layers' parts are placed over pools that stand for devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.systems.tessera.lanes import PARTS
from c2c.systems.tessera.live.placed_model import Placed
from c2c.transformer import KvPool, Model, Runner, Sampling, Shapes, Step, block_elements, load
from tests.transformer.random_checkpoints import config_of, tensors_of, write

SHAPES = Shapes(rows=(4,), budgets=(16,), width=3, mixes=True)
NEW = 12
PROMPTS = [[(5 * k + 3 * at) % 90 for at in range(length)] for k, length in enumerate((3, 16, 60))]


_SLOW = ("qwen3_moe", "gemma2", "deepseek_v3", "llama4_text")
_FAMILIES = ["llama", *(pytest.param(n, marks=pytest.mark.slow) for n in _SLOW)]


@pytest.fixture(scope="module", params=_FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    config = config_of(request.param, num_hidden_layers=4, attention_chunk_size=128)
    return load(write(tmp_path_factory.mktemp("four"), config, tensors_of(config)), "float32")


def over(model: Model, placement: list[list[int]], devices: int = 2) -> Placed:
    each = block_elements(model.spec) // model.spec.layers
    pools = [KvPool(60, each, dtype=np.float32) for _ in range(devices)]
    return Placed(model.params, model.spec, model.linear, pools, placement)


@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_tokens_are_those_of_one_device_and_blocks_are_where_attention_is(
    model: Model, data: st.DataObject
) -> None:
    layers = model.spec.layers
    rows = st.lists(st.integers(0, 1), min_size=len(PARTS), max_size=len(PARTS))
    placement = data.draw(st.lists(rows, min_size=layers, max_size=layers))
    placed = over(model, placement)
    runner, texts = Runner(placed, SHAPES), {}
    for request, ids in enumerate(PROMPTS):
        runner.submit(request, ids, new=NEW, sampling=Sampling())
        left = len(ids)
        while left:  # earlier requests decode beside it
            step = Step(fill=(request, min(left, 16)), decode=tuple(texts))
            for of, token, _ in runner.finish(runner.start(step)).tokens:
                texts.setdefault(of, []).append(token)
            left -= min(left, 16)
    attention = [row[PARTS.index("attention")] for row in placement]
    for kept in placed.kept.values():
        assert kept.path == tuple(attention)
    taken = [sum(kept.blocks.shape[1] for kept in placed.kept.values()) * attention.count(d)
             for d in (0, 1)]  # fmt: skip
    assert [lease.held for lease in placed.leases] == taken
    while runner.requests:
        for of, token, _ in runner.finish(runner.start(Step(decode=runner.requests))).tokens:
            texts[of].append(token)
    for request, ids in enumerate(PROMPTS):
        assert texts[request] == model.generate(list(ids), NEW)
    assert [lease.held for lease in placed.leases] == [0, 0]


def test_only_values_that_later_parts_read_are_sent(model: Model) -> None:
    layers = model.spec.layers
    alone = over(model, [[0] * 4] * layers)
    split = over(model, [[0, 1, 0, 0]] * layers)  # attention elsewhere: q, k, v and its result
    for placed in (alone, split):
        runner = Runner(placed, SHAPES)
        runner.submit(0, PROMPTS[0], new=1, sampling=Sampling())
        runner.finish(runner.start(Step(fill=(0, 3))))
    assert (alone.sent, split.sent) == (0, 4 * layers)


@pytest.mark.parametrize("placement", [[[0, 1, 0, 0]] * 3, [[0, 2, 0, 0]] * 4, [[0, 1, 0]] * 4])
def test_a_placement_of_another_model_is_refused(
    model: Model, placement: list[list[int]], tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=r"placement=.*4 devices below 2 for each of 4 layers"):
        over(model, placement)
