"""Adapters' folders beside their base in a live engine's catalog."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from c2c.engine.catalog import find_models
from c2c.engine.fleet import Options, host_weight_bytes
from c2c.transformer import load
from tests.engine.checkpoints import make_catalog
from tests.engine.live import make_step, served
from tests.transformer.peft_folders import write_adapter
from tests.transformer.random_checkpoints import config_of, tensors_of

TUNES = ("first", "second")


def catalog_of(folder: Path) -> Path:
    """Write a base, two adapters of it, and one whose base is elsewhere."""
    whole = make_catalog(folder / "all")
    catalog = folder / "catalog"
    catalog.mkdir()
    (whole / "one").rename(catalog / "one")
    tensors = tensors_of(config_of("llama"), seed=0)
    for k, name in enumerate(TUNES):
        write_adapter(catalog / name, "one", tensors, ("q_proj", "up_proj"), seed=k)
    write_adapter(catalog / "lost", "elsewhere", tensors, ("q_proj",))
    return catalog


@pytest.mark.slow
def test_adapters_answer_as_alone_and_share_the_weights_of_their_base(tmp_path: Path) -> None:
    catalog, pools = catalog_of(tmp_path), tmp_path / "pools"
    entries = {entry.name: entry for entry in find_models(catalog)}
    assert "base_model_name_or_path='somebody/elsewhere'" in entries["lost"].failed
    options = Options(workers=2, dtype="float32")
    bare, both = (
        host_weight_bytes([entries[name] for name in names], options)
        for names in (("one",), ("one", *TUNES))
    )
    # rank 4, three layers, float32; B has the rows of q, k and v [64], of gate and up [96]
    assert both - bare == 2 * 4 * 3 * 4 * ((32 + 64) + (32 + 96))
    prompts = {name: [5, 9, 11 + k] for k, name in enumerate(("one", *TUNES))}
    make_step()
    settings = (
        f"catalog={catalog}", "workers=2", "rows=[4]", "budgets=[32]", "context=64",
        "pool_bytes=4000000", f"pools={pools}", f"out={tmp_path / 'out'}", "dtype=float32",
    )  # fmt: skip
    with served(*settings, log=tmp_path / "log") as live, ThreadPoolExecutor(3) as at_once:
        answers = at_once.map(lambda name: live.tokens(name, prompts[name], 8), prompts)
        found = dict(zip(prompts, answers, strict=True))
    expected = {
        name: load(catalog / name, "float32").generate(prompts[name], 8) for name in prompts
    }
    assert found == expected
    assert len({tuple(tokens) for tokens in expected.values()}) == 3
    assert [file.name for file in pools.glob("*.pool")] == ["one.float32.pool"]
