"""Plan of a seed: an engine, and lists of requests, faults and wishes that may be shortened."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from c2c.errors import SettingError

__all__ = [
    "EOS", "MODELS", "SLOW", "SYSTEMS", "Ask", "Fault", "Plan", "Wish", "plan_from", "plan_of",
]  # fmt: skip

VOCAB: Final = 96
EOS: Final = (7, 33, 61)
MODELS: Final = 4  # largest number in a catalog; two more may be added
SLOW: Final = 256  # waiting answers of a slow client, as in the front
SYSTEMS: Final = (
    "engine", "aegaeon", "c2cserve_letter", "c2cserve_plus", "serverlessllm_hybrid",
    "serverlessllm",
)  # fmt: skip
_ADDED: Final = ("n0", "n1")
_FAULTS: Final = (
    "kill", "crash", "memory", "freeze", "stall", "pause", "reader", "drain", "clock",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request of a client.

    Attributes:
      at_s: arrival time.
      model: name of the model.
      ids: tokens of the prompt.
      new: largest number of answer tokens.
      stop: tokens that end the answer.
      least: number of tokens before which the answer does not stop.
      priority: priority; None for the default.
      deadline_s: seconds from the arrival to the deadline; None for no deadline.
      cancel: cancellation by the client: after seconds ("time"), twice after them ("twice"), after
        a number of tokens ("tokens"), or never ("").
      cancel_at: these seconds or tokens.
      slow_s: seconds that the client takes for each piece of the answer.
      stream: True if an answer over HTTP is streamed.
      choices: number of answers requested over HTTP.
      scores: number of likeliest tokens reported for each token; None: no scores at all.
      prompt_scores: the same for each token of the prompt.
    """

    at_s: float
    model: str
    ids: tuple[int, ...]
    new: int
    stop: tuple[int, ...] = ()
    least: int = 0
    priority: int | None = None
    deadline_s: float | None = None
    cancel: Literal["", "time", "twice", "tokens"] = ""
    cancel_at: float = 0.0
    slow_s: float = 0.0
    stream: bool = True
    choices: int = 1
    scores: int | None = None
    prompt_scores: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Fault at a time, for a process that is drawn then, with a duration."""

    at_s: float
    kind: str
    who: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Request of an operator."""

    at_s: float
    model: str
    what: str  # load, unload, pin, unpin, watch, add, remove


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything drawn before a run; draws during the run depend on the seed and names only.

    Attributes:
      seed: seed of the run.
      workers: number of workers. This and `ahead` to `busy_poll` are settings of the engine.
      models: number of models in the catalog.
      system: name of the system that serves.
      pool_bytes: bytes of a worker's KV pool.
      roomy: True if memory has room for all weights, else for two models.
      caches: True if blocks of prompts are kept for later requests.
      adds: True if models are added and removed.
      is_harmful: True if faults occur from the start, else once the engine serves.
      ends_s: time at which the engine is told to end; None: after all requests.
      drain_s: seconds that open requests have left then.
      http: True if requests come over HTTP, else over the front's link.
      spins: True if workers poll for frames for a while before they wait.
      slow_link: approximate seconds that bytes take.
      cuts: share of writes that arrive in two pieces.
      step_s: seconds of a call without a prompt.
      fork_fails: share of processes that the machine does not start.
      read_fails: share of checkpoints that cannot be read.
      disk_full: share of checkpoints whose weights find no space.
      boot_hangs: share of processes that never report.
      crash_a_step: share of calls in which a process ends.
      dies_at_hello: share of processes that end in their first call.
      most_waiting: number of waiting answers that makes a client slow.
      asks: requests.
      faults: faults at given times.
      wishes: requests of operators.
      poison: indices in `asks` of requests that end each process that computes them.
    """

    seed: int
    workers: int = 1
    models: int = 1
    system: str = "engine"
    pool_bytes: int = 8 << 20
    is_harmful: bool = False
    ends_s: float | None = None
    drain_s: float = 1.0
    roomy: bool = True
    ahead: int = 0
    retries: int = 3
    patience: int = 20
    has_spare: bool = False
    hang_s: float = 60.0
    max_open: int = 1024
    busy_poll: bool = False
    caches: bool = False
    adds: bool = False
    http: bool = False
    spins: bool = False
    slow_link: float = 5e-5
    cuts: float = 0.0
    step_s: float = 0.001
    fork_fails: float = 0.0
    read_fails: float = 0.0
    disk_full: float = 0.0
    boot_hangs: float = 0.0
    crash_a_step: float = 0.0
    dies_at_hello: float = 0.0
    most_waiting: int = SLOW
    asks: tuple[Ask, ...] = ()
    faults: tuple[Fault, ...] = ()
    wishes: tuple[Wish, ...] = ()
    poison: tuple[int, ...] = ()

    def as_json(self) -> str:
        """Return the plan as JSON for `plan_from`."""
        return json.dumps(asdict(self))


def plan_from(text: str) -> Plan:
    """Return the plan that `as_json` wrote.

    Raises:
      SettingError: the text is no plan.
    """
    try:
        found = json.loads(text)
        asks = tuple(
            Ask(**{**a, "ids": tuple(a["ids"]), "stop": tuple(a["stop"])})
            for a in found.pop("asks")
        )
        faults = tuple(Fault(**fault) for fault in found.pop("faults"))
        wishes = tuple(Wish(**wish) for wish in found.pop("wishes"))
        poison = tuple(found.pop("poison"))
        return Plan(**found, asks=asks, faults=faults, wishes=wishes, poison=poison)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        allowed = "a plan that shrink= wrote"
        raise SettingError(
            "plan", text[:40], allowed, f"{type(error).__name__}: {error}"
        ) from error


@dataclass(slots=True)
class _Drawn:
    """Values shared by the draws of all requests."""

    rng: random.Random
    span_s: float
    names: Sequence[str]
    heads: Sequence[tuple[int, ...]]  # prompts begin with one of these
    cancels: float
    deadlines: float
    slow: float
    http: bool = False
    asks: list[Ask] = field(default_factory=list)


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed."""
    rng = random.Random(f"plan/{seed}")

    def some(share: float, values: Sequence[Any], else_: Any) -> Any:
        return rng.choice(values) if rng.random() < share else else_

    kind = rng.choice(("plain", "plain", "caches", "adds"))
    models, span_s = rng.randint(1, MODELS), rng.choice((0.1, 1.0, 10.0))
    system = some(0.4, SYSTEMS[1:], SYSTEMS[0]) if kind != "caches" else SYSTEMS[0]
    names = [f"m{k}" for k in range(models)]
    wanted = [*names, *_ADDED] if kind == "adds" else names
    hang_s = rng.choice((5.0, 60.0))  # one prompt with scores may take a tenth of it
    http, has_poison = rng.random() < 0.3, rng.random() < 0.15
    drawn = _Drawn(
        rng=rng, span_s=span_s, names=wanted, heads=_heads(rng) if kind == "caches" else [()],
        cancels=some(0.4, (0.1, 0.4), 0.0), deadlines=some(0.4, (0.1, 0.4), 0.0),
        slow=some(0.4, (0.1, 0.4), 0.0), http=http and not has_poison,
    )  # fmt: skip
    asks = sorted((_ask(drawn) for _ in range(rng.choice((5, 15, 30)))), key=lambda ask: ask.at_s)
    return Plan(
        seed=seed,
        workers=rng.choice((1, 1, 2, 2, 3)),
        models=models,
        system=system,
        pool_bytes=rng.choice((8 << 20, 8 << 20, 5 << 20)),
        is_harmful=rng.random() < 0.1,
        ends_s=some(0.15, (0.3 * span_s, 0.7 * span_s), None),
        drain_s=rng.choice((0.0, 0.1, 5.0)),
        ahead=rng.choice((0, 1)),
        roomy=rng.random() < 0.6,
        retries=rng.choice((0, 1, 3, 5)),
        patience=rng.choice((2, 4, 20, 20)),
        has_spare=rng.random() < 0.5,
        hang_s=hang_s,
        max_open=rng.choice((1024, 1024, 1024, 4)),
        busy_poll=rng.random() < 0.3,
        caches=kind == "caches",
        adds=kind == "adds",
        http=drawn.http,
        spins=rng.random() < 0.2,
        slow_link=some(0.4, (1e-3, 2e-2, 0.3), 5e-5),
        cuts=some(0.3, (0.1, 0.5), 0.0),
        step_s=rng.choice((0.001, 0.005, 0.05) if hang_s > 5.0 else (0.001, 0.005)),
        fork_fails=some(0.1, (0.1, 0.5), 0.0),
        read_fails=some(0.2, (0.1, 0.5), 0.0),
        disk_full=some(0.1, (0.1, 0.5), 0.0),
        boot_hangs=some(0.1, (0.1, 0.3), 0.0),
        crash_a_step=some(0.3, (0.002, 0.02), 0.0),
        dies_at_hello=some(0.15, (0.1, 0.3), 0.0),
        most_waiting=some(0.3, (4, 8), SLOW),
        asks=tuple(asks),
        faults=_faults(rng, span_s),
        wishes=_wishes(rng, span_s, names, is_adding=kind == "adds"),
        poison=tuple(sorted(rng.sample(range(len(asks)), 2))) if has_poison else (),
    )


def _heads(rng: random.Random) -> list[tuple[int, ...]]:
    """Return shared prefixes of prompts, some of which are prefixes of others."""
    longest = tuple(rng.randrange(VOCAB) for _ in range(190))
    other = tuple(rng.randrange(VOCAB) for _ in range(130))
    return [longest, longest[:64], longest[:140], other, ()]


def _ask(drawn: _Drawn) -> Ask:
    rng = drawn.rng
    head = rng.choice(drawn.heads)
    own = rng.choice((1, 10, 63, 64, 65, 150) if not head else (1, 10, 63, 64))
    stop = rng.sample(range(VOCAB), rng.choice((0, 1, 4)))
    if drawn.http:
        stop = list(EOS) if stop else []
    new = rng.choice((1, 2, 8, 30, 60))
    cancel: Any = rng.choice(("time", "tokens", "twice")) if rng.random() < drawn.cancels else ""
    in_s = rng.random() * drawn.span_s * 0.3
    return Ask(
        at_s=rng.random() * drawn.span_s,
        model=rng.choice(drawn.names),
        ids=(*head, *(rng.randrange(VOCAB) for _ in range(own))),
        new=new,
        stop=tuple(sorted(stop)),
        least=rng.randint(0, new) if stop and rng.random() < 0.2 else 0,
        priority=rng.choice((None, None, 0, 5)),
        deadline_s=rng.choice((0.01, 0.1, 1.0)) if rng.random() < drawn.deadlines else None,
        cancel=cancel,
        cancel_at=rng.randint(1, 10) if cancel == "tokens" else in_s,
        slow_s=rng.choice((0.01, 0.1)) if rng.random() < drawn.slow else 0.0,
        stream=rng.random() < 0.7,
        choices=rng.choice((2, 4)) if drawn.http and rng.random() < 0.2 else 1,
        scores=rng.choice((0, 2)) if not drawn.http and rng.random() < 0.1 else None,
        prompt_scores=rng.choice((0, 2)) if not drawn.http and rng.random() < 0.1 else None,
    )


def _faults(rng: random.Random, span_s: float) -> tuple[Fault, ...]:
    kinds = [kind for kind in _FAULTS if rng.random() < 0.35]
    found = [
        Fault(
            at_s=rng.random() * span_s * 1.5,
            kind=rng.choice(kinds),
            who=rng.random(),
            for_s=rng.choice((0.001, 0.1, 2.0, 100.0)),
        )
        for _ in range(rng.choice((0, 1, 3, 10, 30)) if kinds else 0)
    ]
    if rng.random() < 0.05:
        found.append(Fault(at_s=rng.random() * span_s, kind="front", who=0.0, for_s=0.0))
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _wishes(
    rng: random.Random, span_s: float, names: Sequence[str], *, is_adding: bool
) -> tuple[Wish, ...]:
    kinds = ["load", "unload", "pin", "unpin", "watch"]
    changes = [rng.choice(("add", "remove")) for _ in range(rng.choice((2, 6)) if is_adding else 0)]
    wishes = [rng.choice(kinds) for _ in range(rng.choice((0, 0, 4, 12)))]
    found = [
        Wish(
            at_s=rng.random() * span_s,
            model=rng.choice([*names, *_ADDED] if is_adding else names),
            what=what,
        )
        for what in [*changes, *wishes]
    ]
    return tuple(sorted(found, key=lambda wish: wish.at_s))
