"""Eviction and prefetch of a mixture's experts in HBM."""

from __future__ import annotations

from typing import Any, NamedTuple

from c2c.compiling.decision import decision
from c2c.policies.returns import A_NUMBER
from c2c.policies.traits import ExpertsTraits, PrefetchTraits
from c2c.ranges import Count

__all__ = [
    "ActivationTrace",
    "AllExperts",
    "ByProbability",
    "ByScore",
    "ExpertMap",
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
    """Return an expert's worth in HBM; the least of all layers is evicted.

    Args:
      last_use: number of the last use, over all experts.
      in_sequence: the present sequence's tokens there.
      probability: predicted for the present token, or 0.
    """


@decision(default=_no_factor, returns=A_NUMBER)
def layer_factor(policy: Any, layer: int, now: int, layers: int) -> float:
    """Return the factor, above 0, of a layer's worth during layer `now`."""


class AllExperts(NamedTuple):
    """No expert cache: experts are with the other weights."""

    @property
    def traits(self) -> ExpertsTraits:
        """Constant traits of this policy."""
        return ExpertsTraits(caches_experts=False)


@expert_worth.by(AllExperts)
def _all_the_same(
    policy: AllExperts, uses: int, last_use: int, in_sequence: float, probability: float
) -> float:  # fmt: skip
    return 0.0


class LongestUnused(NamedTuple):
    """Eviction of the expert whose last use is longest ago."""

    @property
    def traits(self) -> ExpertsTraits:
        """Constant traits of this policy."""
        return ExpertsTraits(reads_probability=False)


@expert_worth.by(LongestUnused)
def _longest_unused(
    policy: LongestUnused, uses: int, last_use: int, in_sequence: float, probability: float
) -> float:  # fmt: skip
    return float(last_use)


class ByScore(NamedTuple):
    """Eviction of the sequence's least used expert, sooner if far ahead.

    Source: MoE-Infinity's paper. Ours: an expert not used counts 0.1 of a use.
    """

    @property
    def traits(self) -> ExpertsTraits:
        """Constant traits of this policy."""
        return ExpertsTraits(reads_probability=False)


@expert_worth.by(ByScore)
def _score(
    policy: ByScore, uses: int, last_use: int, in_sequence: float, probability: float
) -> float:  # fmt: skip
    return in_sequence + 0.1


@layer_factor.by(ByScore)
def _soon(policy: ByScore, layer: int, now: int, layers: int) -> float:
    ahead = layer - now if layer > now else layer - now + layers
    return 1.0 - ahead / (layers + 1.0)


class ByProbability(NamedTuple):
    """Eviction of the expert with the least predicted probability times its uses.

    Source: FineMoE. Ours: 0.01 more for all.
    """


@expert_worth.by(ByProbability)
def _probability(
    policy: ByProbability, uses: int, last_use: int, in_sequence: float, probability: float
) -> float:  # fmt: skip
    return (probability + 0.01) * (uses + 1.0)


class MostVisited(NamedTuple):
    """Eviction of the expert that most steps have used.

    Source: MoE-Infinity's public code (March 2026).
    """

    @property
    def traits(self) -> ExpertsTraits:
        """Constant traits of this policy."""
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
    """Return an expert's prefetch weight: the largest is fetched first, 0 never.

    Args:
      probability: predicted in its layer.
      ahead: layers from the running one to the expert's.
    """


@decision(default=_all_mass, returns=A_NUMBER)
def mass_to_fetch(policy: Any, similarity: float) -> float:
    """Return a layer's probability to fetch, likeliest experts first."""


class NoPrefetch(NamedTuple):
    """No prefetch: missing experts are fetched."""


@prefetch_weight.by(NoPrefetch)
def _never(policy: NoPrefetch, probability: float, ahead: int, layers: int) -> float:
    return 0.0


class ActivationTrace(NamedTuple):
    """Prediction by the stored sequence most similar in the layers so far.

    Source: MoE-Infinity's paper.
    """

    capacity: Count = 1000

    @property
    def traits(self) -> PrefetchTraits:
        """Constant traits of this policy."""
        return PrefetchTraits(rows=self.capacity)


@prefetch_weight.by(ActivationTrace)
def _sooner(policy: ActivationTrace, probability: float, ahead: int, layers: int) -> float:
    return probability * (1.0 - ahead / (layers + 1.0))


class ExpertMap(NamedTuple):
    """Prediction of the layer `distance` ahead by the most similar stored step, or embedding.

    Source: FineMoE.
    """

    capacity: Count = 1000
    distance: Count = 6

    @property
    def traits(self) -> PrefetchTraits:
        """Constant traits of this policy."""
        return PrefetchTraits(
            rows=self.capacity, of_token=True, embedded=self.distance, ahead=self.distance
        )


@prefetch_weight.by(ExpertMap)
def _likely(policy: ExpertMap, probability: float, ahead: int, layers: int) -> float:
    return probability / ahead


@mass_to_fetch.by(ExpertMap)
def _by_similarity(policy: ExpertMap, similarity: float) -> float:
    return 1.0 - similarity
