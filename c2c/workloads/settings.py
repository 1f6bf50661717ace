"""Settings of a workload."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

from c2c.errors import SettingError, check_keys
from c2c.ranges import AboveZero, FromZero, In, Index, OneOf, check_fields, check_value, typed
from c2c.workloads.assignment import RULES
from c2c.workloads.formats import format_names
from c2c.workloads.names import UNITS

__all__ = ["WorkloadConfig", "shared_dir", "workload_config"]

_KINDS: Final = (
    "trace", "synthetic", "poisson", "deterministic", "closed_loop", "conversations", "agents",
    "servegen",
)  # fmt: skip
MOST_REQUESTS = 10_000_000_000


def shared_dir() -> Path:
    """Return the folder of shared traces: C2C_SHARED, or `shared` near the checkout."""
    if place := os.environ.get("C2C_SHARED"):
        return Path(place)
    return Path(__file__).resolve().parents[3] / "shared"


# Kinds that read a setting, for settings that not all kinds read.
_READ_BY: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("format", "columns", "sort", "time_unit", "origin"), ("trace",)),
    "path": ("trace", "servegen"),
    "rate_factor": ("servegen",),
    **dict.fromkeys(("on_bad_row", "on_zero_output", "on_duplicate"), ("trace",)),
    **dict.fromkeys(("days", "gap_cv", "day_night"), ("synthetic",)),
    "concurrency": ("closed_loop",),
    "ramp_s": ("closed_loop", "agents", "trace"),
    "agents": ("agents", "trace"),
    **dict.fromkeys(("turns", "system_tokens"), ("conversations", "agents")),
    **dict.fromkeys(
        ("tool_s", "tool_cv", "subagent_share", "subagents", "subagent_turns"), ("agents",)
    ),
    **dict.fromkeys(("requests", "models"), _KINDS[1:-1]),
    "rate_rps": ("poisson", "deterministic", "conversations", "agents"),
    "zipf_exponent": ("poisson", "closed_loop", "conversations", "agents"),
    "think_s": ("closed_loop", "conversations", "agents"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """Source of the requests and transformations of them, as one flat set of settings.

    Attributes:
      name: name in summaries and figures.
      kind: trace (a file), synthetic (GenTD26's statistics), poisson, deterministic, closed_loop
        (clients that wait for their answers), conversations (sessions of turns), agents (with tools
        and sub-agents) or servegen (ServeGen's clients).

      path: trace file (Parquet, CSV, JSON or a log), or the name of a shared one in
        `<shared>/traces`; servegen: folder of clients' files.
      format: a known format (of logs: vllm, sglang, openai_batch), or auto (by columns or lines).
      columns: field -> column, e.g. {arrival_s: time, model: service}; an empty name: no such
        column. For other fields, the format's or the only likely column.
      on_bad_row: reject (list the counts and stop) or skip (drop and count).
      on_zero_output: for a request without output: reject (a bad row) or prefill (its one token
        counts).
      on_duplicate: for a row equal to an earlier one: keep (and count) or refuse (a bad row).
      sort: order rows by arrival; if false, rows out of order are bad.
      max_total_tokens: rows with more tokens are bad; conversations, agents: a session ends before
        more; 0: no limit.
      block_tokens: tokens of a hash in `hash_ids`; 0: the format's. conversations, agents: tokens
        of the blocks that prompts share.
      turns_wait: trace: a turn arrives a time to think after the answers it waits for; false: at
        the file's times.
      time_unit: unit of numeric times: s, ms, us, ns, min, h or d; auto: inferred for times since
        1970, else the format's, else by the column's name, else seconds.
      origin: time 0 is the first request (first) or the file's own (keep, only for numeric times);
        auto: keep for `arrival_s` files that begin within an hour, else first.

      requests: generators: number of requests.
      models: generators: number of models; 0: the catalog's.
      days: synthetic: length in days.
      gap_cv: synthetic: coefficient of variation of gaps within an hour.
      day_night: synthetic: strength of the daily cycle; 0: none.
      rate_rps: poisson, deterministic: requests per second; conversations, agents: the rate if
        answers took no time.
      rate_factor: servegen: factor of the clients' rates.
      zipf_exponent: popularity of models, rank^-exponent.
      concurrency: closed_loop: number of clients.
      think_s: closed_loop: time from a request's end to the client's next; conversations: mean time
        from an answer to the next turn; agents: time from a session to the client's next.
      turns: conversations, agents: mean turns of a session, without sub-agents'.
      system_tokens: conversations, agents: length of the system prompt that a model's requests
        share.
      agents: agents, a trace with turns_wait: number of clients that each begin a session after
        their last; 0: sessions begin at their times.
      ramp_s: time over which clients start, evenly; 0: together.
      tool_s: agents: mean time from an answer to the next turn.
      tool_cv: agents: coefficient of variation of that time.
      subagent_share: agents: share of turns that start sub-agents.
      subagents: agents: mean sub-agents of such a turn.
      subagent_turns: agents: mean turns of a sub-agent.

      lengths: auto (a trace's or ServeGen's own, else synthetic), trace, synthetic, fixed,
        sharegpt, azure2023 or a file of pairs.
      prompt_tokens: prompt length, with lengths=fixed.
      output_tokens: output length, with lengths=fixed.
      chars_per_token: characters per token of texts in a log or JSON; 0: not converted.
      length_min_tokens: least prompt and output of a source's pairs, not of a trace's own.
      length_max_prompt_tokens: longest prompt of a source's pairs.
      length_max_total_tokens: most tokens of a source's pair.

      start_s: start of the window, in the source's time.
      duration_s: length of the window; 0: to the end.
      replicas: superposed copies of the trace, rotated by random times but the first.
      compression: divisor of arrivals.
      max_requests: first requests to keep; 0: all.

      assignment: for ids that name no model of the catalog: own (a deployment each),
        popularity_rank or round_robin_by_first_seen (they share its models); auto: own for a trace,
        popularity_rank for a generator.
      assignment_map: trace id -> catalog name, before the rule.
    """

    name: str = "workload"
    kind: Annotated[str, OneOf(*_KINDS)] = "synthetic"

    path: str = ""
    format: str = "auto"
    columns: dict[str, str] = field(default_factory=dict)
    on_bad_row: Annotated[str, OneOf("reject", "skip")] = "reject"
    on_zero_output: Annotated[str, OneOf("reject", "prefill")] = "reject"
    on_duplicate: Annotated[str, OneOf("keep", "refuse")] = "keep"
    sort: bool = False
    max_total_tokens: Index = 0
    block_tokens: Index = 0
    turns_wait: bool = False
    time_unit: Annotated[str, OneOf("auto", *UNITS)] = "auto"
    origin: Annotated[str, OneOf("auto", "first", "keep")] = "auto"

    requests: int = 350_000
    models: Index = 89
    days: int = 21
    gap_cv: float = 1.5
    day_night: float = 2.5
    rate_rps: float = 1.0
    rate_factor: AboveZero = 1.0
    zipf_exponent: float = 0.0
    concurrency: int = 1
    think_s: float = 0.0
    ramp_s: float = 0.0
    turns: float = 4.0
    system_tokens: int = 256
    agents: Annotated[int, In("[0, 2**31)")] = 0
    tool_s: float = 5.0
    tool_cv: float = 2.0
    subagent_share: float = 0.1
    subagents: float = 2.0
    subagent_turns: float = 6.0

    lengths: str = "auto"
    prompt_tokens: Annotated[int, In("[1, 2**31)")] = 128
    output_tokens: Annotated[int, In("[1, 2**31)")] = 128
    chars_per_token: FromZero = 0.0
    length_min_tokens: int = 4
    length_max_prompt_tokens: int = 1024
    length_max_total_tokens: int = 2048

    start_s: FromZero = 0.0
    duration_s: FromZero = 0.0
    replicas: Annotated[int, In("[1, 2**31)")] = 1
    compression: AboveZero = 1.0
    max_requests: Index = 0

    assignment: Annotated[str, OneOf("auto", *RULES)] = "auto"
    assignment_map: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, "workload")
        check_value(self.format, Annotated[str, OneOf(*format_names())], "workload.format")
        if self.kind in ("trace", "servegen") and not self.path:
            allowed = "a trace file" if self.kind == "trace" else "a folder of clients"
            raise SettingError("workload.path", self.path, allowed, "Set workload.path=<path>.")
        if self.kind not in ("trace", "servegen") and self.requests * self.replicas > MOST_REQUESTS:
            raise SettingError(
                "workload.requests", self.requests, f"at most {MOST_REQUESTS:,}, with replicas"
            )
        if self.kind in ("closed_loop", "conversations", "agents"):
            self._check_closed()
        self._check_waiting()
        has_blocks = self.kind in ("trace", "conversations", "agents")
        if self.block_tokens >= 2**31 or (self.block_tokens and not has_blocks):
            largest = "below 2**31" if has_blocks else f"0 with kind={self.kind}"
            raise SettingError("workload.block_tokens", self.block_tokens, largest)
        if self.kind != "trace" and self.lengths == "trace":
            raise SettingError("workload.lengths", "trace", f"another source with kind={self.kind}")
        self._check_read()

    def _check_waiting(self) -> None:
        if self.turns_wait and self.kind != "trace":
            raise SettingError("workload.turns_wait", True, f"false with kind={self.kind}")
        if self.turns_wait and self.replicas != 1:
            raise SettingError("workload.replicas", self.replicas, "1 with turns_wait=true")
        if self.agents and self.kind == "trace" and not self.turns_wait:
            raise SettingError("workload.agents", self.agents, "0 with turns_wait=false")
        if self.ramp_s and not self.agents and self.kind in ("agents", "trace"):
            raise SettingError("workload.ramp_s", self.ramp_s, "0 with workload.agents=0")

    def _check_read(self) -> None:
        # Settings that the kind does not read must have their defaults.
        for one in fields(self):
            kinds, value = _READ_BY.get(one.name, (self.kind,)), getattr(self, one.name)
            default = one.default if one.default_factory is MISSING else one.default_factory()
            if self.kind not in kinds and value != default:
                more = "A trace has workload.max_requests." if one.name == "requests" else ""
                raise SettingError(
                    f"workload.{one.name}", value,
                    f"the default with kind={self.kind}, which does not read it", more,
                )  # fmt: skip

    def _check_closed(self) -> None:
        # Arrivals depend on answers: there are no times to cut, compress or rotate.
        for name, only in {"start_s": 0, "duration_s": 0, "replicas": 1, "compression": 1}.items():
            if (value := getattr(self, name)) != only:
                raise SettingError(f"workload.{name}", value, f"{only} with kind={self.kind}")


def workload_config(settings: Mapping[str, Any] | WorkloadConfig) -> WorkloadConfig:
    """Return a mapping's config.

    Raises:
      SettingError: an unknown key or invalid value.
    """
    if isinstance(settings, WorkloadConfig):
        return settings
    check_keys(settings, [f.name for f in fields(WorkloadConfig)], "workload")
    hints, checked = get_type_hints(WorkloadConfig, include_extras=True), dict[str, Any]()
    for key, value in settings.items():
        is_map = key in ("columns", "assignment_map")
        checked[key] = (
            _text_map(key, value) if is_map else typed(value, hints[key], f"workload.{key}")
        )
    return WorkloadConfig(**checked)


def _text_map(key: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise SettingError(f"workload.{key}", value, "a mapping of names to names")
    return {str(name): str(target) for name, target in value.items()}
