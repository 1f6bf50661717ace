"""Names and patterns of modules in quantised checkpoints."""

import itertools
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from c2c.errors import SettingError
from c2c.models.families import FAMILIES

__all__ = ["Modules", "glob_of"]

_MOST_ALTERNATIVES = 64


class Modules:
    """Set of modules from names, starred patterns, or expressions of names and `.*`.

    Names are those of `c2c.models.gemms` in the family's checkpoints; a name includes what is below
    it.
    """

    def __init__(self, entries: Iterable[str], family: str, field: str) -> None:
        self._names = sorted(
            FAMILIES[family].modules.items() if family in FAMILIES else (),
            key=lambda pair: -len(pair[0]),
        )
        self._every, self._some = set[str](), dict[str, set[int]]()
        self._patterns: dict[int | None, set[str]] = {}
        for entry in entries:
            self._add(entry, field)

    def layers(self, module: str, layers: Iterable[int]) -> tuple[int, ...]:
        """Return the layers whose module is in the set."""
        name = self._translated(module)
        if any(_holds(one, name) for one in self._every):
            return tuple(layers)
        parts = name.split(".")
        above = [".".join(parts[i:j]) for i, j in itertools.combinations(range(len(parts) + 1), 2)]
        some = set[int]().union(*(self._some.get(one, ()) for one in above))
        return tuple(layer for layer in layers if layer in some or self._matches(layer, name))

    def _translated(self, module: str) -> str:
        for ours, theirs in self._names:
            if f"{module}.".startswith(f"{ours}."):
                return theirs + module.removeprefix(ours)
        return module

    def _add(self, entry: str, field: str) -> None:
        text = re.sub(r"^((language_|text_)?model\.|backbone\.)+", "", entry)
        text = re.sub(r"\.experts\.\d+\.", ".experts.", text)
        path = text.split(".")
        if entry.startswith("re:"):
            self._patterns.setdefault(None, set()).update(glob_of(field, entry))
        elif path[0] == "layers" and len(path) > 2 and path[1].isdigit():
            name, layer = ".".join(path[2:]), int(path[1])
            if "*" in name:
                self._patterns.setdefault(layer, set()).add(name)
            else:
                self._some.setdefault(name, set()).add(layer)
        elif "*" in text and path[:2] != ["layers", "*"]:
            self._patterns.setdefault(None, set()).add(text)
        else:
            name = ".".join(path[2:] if path[0] == "layers" else path)
            if "*" in name:
                self._patterns.setdefault(None, set()).add(f"*.{name}")
            else:
                self._every.add(name)

    def _matches(self, layer: int, name: str) -> bool:
        one = name.replace("experts.", "experts.0.") if ".experts." in f".{name}" else name
        return any(
            fnmatchcase(spelling, pattern) for pattern in self._patterns.get(layer, ())
            for spelling in {name, one}
        ) or any(
            fnmatchcase(f"{start}layers.{layer}.{spelling}", pattern)
            for pattern in self._patterns.get(None, ())
            for start in ("", "model.") for spelling in {name, one}
        )  # fmt: skip


def glob_of(field: str, entry: str) -> list[str]:
    r"""Return the patterns of an expression of names, `.*` and alternatives.

    >>> glob_of("ignore", r"re:.*mlp\.gate$"), glob_of("ignore", "re:.*(q|k)_proj.*")
    (['*mlp.gate'], ['*q_proj*', '*k_proj*'])
    """
    text = entry.removeprefix("re:").removeprefix("^")
    whole = text.removesuffix("$")
    pieces = re.split(r"\((\w+(?:\|\w+)*)\)", whole)
    choices = [piece.split("|") if i % 2 else [piece] for i, piece in enumerate(pieces)]
    plain = [part for piece in pieces[::2] for part in piece.split(".*")]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > _MOST_ALTERNATIVES or not all(re.fullmatch(r"(?:\w|\\\.|\.)*", p) for p in plain):
        raise SettingError(field, entry, "a name, or an expression of names, (a|b) and .*")
    result = []
    for chosen in itertools.product(*choices):
        parts = "".join(chosen).split(".*")
        glob = "*".join(part.replace("\\.", "\0").replace(".", "?") for part in parts)
        is_whole = text.endswith("$") or glob.endswith("*")
        result.append(glob.replace("\0", ".") + ("" if is_whole else "*"))
    return result


def _holds(name: str, module: str) -> bool:
    """Return whether a name is the module itself or one of its parents.

    >>> _holds("self_attn", "self_attn.q_proj"), _holds("gate", "mlp.gate_proj")
    (True, False)
    """
    return f".{name}." in f".{module}."
