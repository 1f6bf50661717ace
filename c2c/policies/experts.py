"""Experts in a slice's HBM: eviction, and prefetch."""

from __future__ import annotations

from typing import Any, NamedTuple

from c2c.compiling.decision import decision
from c2c.errors import SettingError
from c2c.policies.returns import A_NUMBER
from c2c.policies.traits import ExpertsTraits, PrefetchTraits

__all__ = [
    "ActivationTrace",
    "AllExperts",
    "ByProbability",
    "ByScore",
    "ExpertMap",
    "LeastFrequentlyUsed",
    "LongestUnused",
    "MostVisited",
    "NoPrefetch",
    "expert_worth",
    "layer_factor",
    "mass_to_fetch",
    "prefetch_weight",
]


def _no_factor(policy: Any, layer: int, now: int, layers: int) -> float:
    return 1.0


@decision(returns=A_NUMBER)
def expert_worth(
    policy: Any, uses: int, last_use: int, in_sequence: float, probability: float
) -> float:
    """Return what an expert in HBM is worth; the least worth of all layers gives way.

    Args:
      policy: decides.
      uses: steps that have used it.
      last_use: number of the last use, counted over all experts; ascending.
      in_sequence: tokens of the present sequence that took it.
      probability: predicted for the present token, 0 without a prediction.
    """


@decision(default=_no_factor, returns=A_NUMBER)
def layer_factor(policy: Any, layer: int, now: int, layers: int) -> float:
    """Return by what a layer's worth counts while layer `now` runs; above 0.

    Args:
      policy: decides.
      layer: of the expert, from 0.
      now: the layer that runs.
      layers: how many there are.
    """


class AllExperts(NamedTuple):
    """Experts are wherever the other weights are; there is no cache."""

    @property
    def traits(self) -> ExpertsTraits:
        """Facts of this policy that hold at any time."""
        return ExpertsTraits(caches_experts=False)


@expert_worth.by(AllExperts)
def _all_the_same(
    policy: AllExperts, uses: int, last_use: int, in_sequence: float, probability: float
) -> float:  # fmt: skip
    return 0.0


class LongestUnused(NamedTuple):
    """The expert whose last use is longest ago."""

    @property
    def traits(self) -> ExpertsTraits:
        """Facts of this policy that hold at any time."""
        return ExpertsTraits(reads_probability=False)


@expert_worth.by(LongestUnused)
def _longest_unused(
    policy: LongestUnused, uses: int, last_use: int, in_sequence: float, probability: float
) -> float:  # fmt: skip
    return float(last_use)


class LeastFrequentlyUsed(NamedTuple):
    """The expert that fewest steps have used."""

    @property
    def traits(self) -> ExpertsTraits:
        """Facts of this policy that hold at any time."""
        return ExpertsTraits(reads_probability=False)


@expert_worth.by(LeastFrequentlyUsed)
def _least_frequently(
    policy: LeastFrequentlyUsed, uses: int, last_use: int, in_sequence: float, probability: float
) -> float:  # fmt: skip
    return float(uses)


class ByScore(NamedTuple):
    """The expert that the sequence used least, sooner if its layer is far ahead.

    Source: MoE-Infinity's paper, layer decay times the sequence's frequency. Ours: an expert that
    the sequence has not used counts `unused` of a use, so that layers are told apart among those.
    """

    unused: float = 0.1

    def check(self, where: str) -> None:
        """Raise SettingError for a setting that cannot work."""
        if not self.unused > 0.0:
            raise SettingError(f"{where}.unused", self.unused, "a number above 0")

    @property
    def traits(self) -> ExpertsTraits:
        """Facts of this policy that hold at any time."""
        return ExpertsTraits(reads_probability=False)


@expert_worth.by(ByScore)
def _score(
    policy: ByScore, uses: int, last_use: int, in_sequence: float, probability: float
) -> float:  # fmt: skip
    return in_sequence + policy.unused


@layer_factor.by(ByScore)
def _soon(policy: ByScore, layer: int, now: int, layers: int) -> float:
    ahead = layer - now if layer > now else layer - now + layers
    return 1.0 - ahead / (layers + 1.0)


class ByProbability(NamedTuple):
    """The expert of the least predicted probability times its uses.

    Source: FineMoE. Ours: without a prediction the probability is `unseen`.
    """

    unseen: float = 0.01

    def check(self, where: str) -> None:
        """Raise SettingError for a setting that cannot work."""
        if not self.unseen > 0.0:
            raise SettingError(f"{where}.unseen", self.unseen, "a number above 0")


@expert_worth.by(ByProbability)
def _probability(
    policy: ByProbability, uses: int, last_use: int, in_sequence: float, probability: float
) -> float:  # fmt: skip
    return (probability + policy.unseen) * (uses + 1.0)


class MostVisited(NamedTuple):
    """The expert that most steps have used.

    Source: MoE-Infinity's public code (March 2026), which sorts by visits descending.
    """

    @property
    def traits(self) -> ExpertsTraits:
        """Facts of this policy that hold at any time."""
        return ExpertsTraits(reads_probability=False)


@expert_worth.by(MostVisited)
def _most_visited(
    policy: MostVisited, uses: int, last_use: int, in_sequence: float, probability: float
) -> float:  # fmt: skip
    return -float(uses)


def _all_mass(policy: Any, similarity: float) -> float:
    return 1.0


@decision(returns=A_NUMBER)
def prefetch_weight(policy: Any, probability: float, ahead: int, layers: int) -> float:
    """Return when an expert is fetched: the largest first, 0 never.

    Args:
      policy: decides.
      probability: that the prediction gives it in its layer.
      ahead: layers from the one that runs to its own.
      layers: how many there are.
    """


@decision(default=_all_mass, returns=A_NUMBER)
def mass_to_fetch(policy: Any, similarity: float) -> float:
    """Return the predicted probability of a layer that is fetched, its likeliest experts first."""


class NoPrefetch(NamedTuple):
    """Experts are fetched when a layer lacks them."""


@prefetch_weight.by(NoPrefetch)
def _never(policy: NoPrefetch, probability: float, ahead: int, layers: int) -> float:
    return 0.0


class ActivationTrace(NamedTuple):
    """The stored sequence that is most similar in the layers run so far predicts the rest.

    Source: MoE-Infinity's paper; with `compares_seen` false its public code (March 2026), which
    overwrites the layers it would compare, so that the first stored one is always taken.
    """

    capacity: int = 1000
    compares_seen: bool = True

    def check(self, where: str) -> None:
        """Raise SettingError for a setting that cannot work."""
        if self.capacity < 1:
            raise SettingError(f"{where}.capacity", self.capacity, "a whole number above 0")

    @property
    def traits(self) -> PrefetchTraits:
        """Facts of this policy that hold at any time."""
        return PrefetchTraits(rows=self.capacity, compares_seen=self.compares_seen)


@prefetch_weight.by(ActivationTrace)
def _sooner(policy: ActivationTrace, probability: float, ahead: int, layers: int) -> float:
    return probability * (1.0 - ahead / (layers + 1.0))


class ExpertMap(NamedTuple):
    """The stored step that is most similar predicts the layer `distance` ahead.

    The first `distance` layers are predicted by the most similar embedding, the others by the
    layers run so far; of a layer the likeliest experts are fetched until their probability passes
    1 less the similarity.

    Source: FineMoE.
    """

    capacity: int = 1000
    distance: int = 6

    def check(self, where: str) -> None:
        """Raise SettingError for a setting that cannot work."""
        for name, value in zip(self._fields, self, strict=True):
            if value < 1:
                raise SettingError(f"{where}.{name}", value, "a whole number above 0")

    @property
    def traits(self) -> PrefetchTraits:
        """Facts of this policy that hold at any time."""
        return PrefetchTraits(
            rows=self.capacity, of_token=True, embedded=self.distance, ahead=self.distance
        )


@prefetch_weight.by(ExpertMap)
def _likely(policy: ExpertMap, probability: float, ahead: int, layers: int) -> float:
    return probability / ahead


@mass_to_fetch.by(ExpertMap)
def _by_similarity(policy: ExpertMap, similarity: float) -> float:
    return 1.0 - similarity
