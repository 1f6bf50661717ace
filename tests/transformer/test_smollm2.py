"""A trained model end to end, where its file has been fetched already."""

from __future__ import annotations

import pytest

from c2c.transformer import load
from c2c.transformer.weights.default_checkpoint import SMOLLM2, cached_path


@pytest.mark.slow
def test_it_knows_the_capital_of_france() -> None:
    file = cached_path(SMOLLM2)
    if not file.is_file():
        pytest.skip("SmolLM2 is not in the cache: c2c generate fetches it")
    model = load(file)
    assert model.tokenizer is not None
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    ids = model.tokenizer.encode_chat(asked)
    answer = model.generate(ids, 24, stop_at_eos=True)
    assert answer[-1] in model.eos_ids
    assert "Paris" in model.tokenizer.decode(answer)
