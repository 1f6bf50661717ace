"""The machine-code cache is keyed by content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from c2c.simulator import cache_dir, cache_key
from c2c.simulator.compiled import _sources
from c2c.simulator.events import new_tournament, next_device, set_end


def test_a_changed_source_gets_another_cache(tmp_path: Path) -> None:
    copies = []
    for path in _sources():
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        copies.append(copy)
    before = cache_key(copies)
    assert cache_key(copies) == before
    for copy in copies:
        original = copy.read_bytes()
        copy.write_bytes(original + b"\n# changed\n")
        assert cache_key(copies) != before, copy.name
        copy.write_bytes(original)
    assert cache_key(copies) == before


def test_every_module_of_the_compiled_code_is_in_the_key() -> None:
    import c2c

    root = Path(c2c.__file__).parent
    listed = {p.resolve() for p in _sources()}
    for folder in ("policies", "serving", "simulator", "cost"):
        for path in (root / folder).glob("*.py"):
            if "jitable" in path.read_text(encoding="utf-8"):
                assert path.resolve() in listed, path


def test_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("C2C_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path / "numba" / cache_key()


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 21])
def test_tournament_finds_the_first_and_ties_go_to_the_lowest(n: int) -> None:
    g = np.random.default_rng(n)
    tree, end_s = new_tournament(n), np.full(n, np.inf)
    assert next_device(tree) == 0
    for _ in range(200):
        i = int(g.integers(n))
        at = float(g.choice([1.0, 2.0, 3.0, np.inf]))
        set_end(tree, end_s, i, at)
        assert next_device(tree) == int(np.argmin(end_s))
