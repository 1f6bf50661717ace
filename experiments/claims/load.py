"""Claims as frozen dataclasses, from `claims.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml

from c2c.errors import DataError, SettingError
from c2c.ranges import OneOf, check_fields

__all__ = [
    "CLAIMS_PATH",
    "PAPERS",
    "Claim",
    "Explanation",
    "claim",
    "explanations",
    "load_claims",
    "read_claims",
]

CLAIMS_PATH = Path(__file__).with_name("claims.yaml")
EXPLAINED_PATH = Path(__file__).with_name("explained.yaml")

# System of a claim -> name of its paper.
PAPERS = {
    "c2cserve": "C2CServe",
    "medusa": "MEDUSA",
    "tessera": "Tessera",
    "cocoserve": "CoCoServe",
    "weaver": "WEAVER",
}
KINDS = ("ratio", "absolute", "constant", "algorithm", "table", "trend", "range")
HOWS = ("simulation", "calibration", "analytic", "runtime", "kernel")
QUALIFIERS = (
    "up_to",
    "at_least",
    "at_most",
    "less_than",
    "more_than",
    "approx",
    "equal",
    "example",
    "potentially",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A paper's statement, as in `claims.yaml`.

    `value` is a number, [low, high], a mapping, or a predicate such as "increasing in N".
    """

    id: str
    system: Annotated[str, OneOf(*PAPERS)]
    where: str
    says: str
    metric: str
    value: Any
    unit: str
    kind: Annotated[str, OneOf(*KINDS)]
    how: Annotated[str, OneOf(*HOWS)]
    conditions: Mapping[str, Any]
    note: str = ""

    def __post_init__(self) -> None:
        check_fields(self, self.id)
        if self.value is None:
            raise SettingError(f"{self.id}.value", None, "a value")

    @property
    def qualifier(self) -> str:
        """Qualifier of the number, such as "up_to", or ""."""
        words = str(self.conditions.get("qualifier", "")).replace(",", " ").split()
        word = words[0] if words else ""
        if word and word not in QUALIFIERS:
            raise SettingError(f"{self.id}.conditions.qualifier", word, ", ".join(QUALIFIERS))
        return word

    @property
    def is_informational(self) -> bool:
        """True for a constant of the paper's setup, not a result."""
        return self.kind == "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Reason without figure for a claim, and tests, `file::name`."""

    why: str
    tests: tuple[str, ...] = ()


@cache
def explanations() -> dict[str, Explanation]:
    """Return the explanations by claim id."""
    entries = yaml.load(EXPLAINED_PATH.read_bytes(), Loader=_loader())  # noqa: S506 (a safe one)
    result = {}
    for name, entry in entries.items():
        if name not in load_claims() or not entry.get("why"):
            raise DataError(EXPLAINED_PATH.name, f"{name}: expected the id of a claim and `why`")
        result[name] = Explanation(
            why=str(entry["why"]).strip(), tests=tuple(entry.get("tests", ()))
        )
    return result


def read_claims(path: Path) -> dict[str, Claim]:
    """Return a file's claims by id, in order."""
    try:
        entries = yaml.load(path.read_bytes(), Loader=_loader())  # noqa: S506 (a safe loader)
    except (OSError, yaml.YAMLError) as error:
        raise DataError(path.name, str(error)) from error
    if not isinstance(entries, list):
        raise DataError(path.name, "expected a list of claims")
    claims: dict[str, Claim] = {}
    for entry in entries:
        try:
            record = Claim(**entry)
        except TypeError as error:
            raise DataError(path.name, f"{entry!r:.80}: {error}") from error
        if record.id in claims:
            raise DataError(path.name, f"claim {record.id} occurs twice")
        claims[record.id] = record
    return claims


@cache
def load_claims() -> dict[str, Claim]:
    """Return the project's claims by id."""
    return read_claims(CLAIMS_PATH)


def claim(claim_id: str) -> Claim:
    """Return one claim."""
    claims = load_claims()
    if claim_id not in claims:
        near = ", ".join(get_close_matches(claim_id, claims, n=3)) or "see claims.yaml"
        raise SettingError("claim", claim_id, "the id of a claim", f"Closest: {near}.")
    return claims[claim_id]


def _loader() -> Any:
    # libyaml reads the file in a tenth of the time; some builds of PyYAML lack it
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)
