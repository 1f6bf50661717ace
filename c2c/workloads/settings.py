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
    """Return the folder of shared traces: C2C_SHARED, or `shared` beside the checkout."""
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
        (clients that send when their last request has ended), conversations (sessions of turns),
        agents (sessions with tools and sub-agents) or servegen (ServeGen's clients).

      path: trace file (Parquet, CSV, JSON or a log); a name without a folder is also looked up
        among the shared traces (`<shared>/traces`). servegen: folder of clients' files.
      format: a known format (of logs: vllm, sglang, openai_batch), or auto (by columns or lines).
      columns: field -> column for other files, e.g. {arrival_s: time, model: service}; an empty
        name means that the file has no such column, e.g. {model: ""}. For a field that neither
        this nor the format names, the only likely column is taken.
      on_bad_row: reject (list the counts and stop) or skip (drop the rows and record the counts).
      on_zero_output: reject (a request without output tokens is a bad row) or prefill (it ends with
        its prefill, whose one token counts).
      on_duplicate: keep (rows equal in all columns are separate requests, and counted) or refuse
        (a row equal to an earlier one is a bad row).
      sort: order rows by arrival; if false, a row earlier than a previous one is bad.
      max_total_tokens: rows with more tokens are bad; conversations, agents: a session ends before
        a turn with more; 0: no limit.
      block_tokens: tokens of a prompt's block; `hash_ids` has a hash for each block; 0: the
        format's size. conversations, agents: tokens of the blocks that prompts share.
      turns_wait: trace: a turn arrives after the answers that it waits for, in a session the
        previous one, and the file's time to think; false: at its time in the file.
      time_unit: unit of numeric times: s, ms, us, ns, min, h or d; auto: inferred for times since
        1970, else the format's, else that at the end of the column's name, else seconds.
      origin: time 0 is the first request (first) or the file's own zero (keep, only for numeric
        times); auto: keep for `arrival_s` files whose first request is within an hour, else first.

      requests: generators: exact number of requests.
      models: generators: number of models; 0: as many as the catalog has.
      days: synthetic: length in days.
      gap_cv: synthetic: coefficient of variation of the gaps within an hour.
      day_night: synthetic: strength of the daily cycle that all models share; 0: none.
      rate_rps: poisson, deterministic: requests per second; conversations, agents: the rate if
        answers took no time.
      rate_factor: servegen: factor of the clients' rates.
      zipf_exponent: popularity of models, rank^-exponent.
      concurrency: closed_loop: number of clients, hence the most requests in flight.
      think_s: closed_loop: time from the end of a client's request to its next one; conversations:
        mean time from an answer to the next turn; agents: time from a session to a client's next.
      turns: conversations, agents: mean turns of a session, without those of sub-agents.
      system_tokens: conversations, agents: length of the system prompt, shared by a model's
        requests.
      agents: agents, a trace with turns_wait: number of clients that each begin a session when
        their last one has ended; 0: sessions begin at their times.
      ramp_s: time over which the clients start, evenly spaced; 0: all at once.
      tool_s: agents: mean time of a tool, from an answer to the next turn.
      tool_cv: agents: coefficient of variation of that time.
      subagent_share: agents: share of turns that start sub-agents.
      subagents: agents: mean number of sub-agents that such a turn starts.
      subagent_turns: agents: mean turns of a sub-agent.

      lengths: auto (a trace's or ServeGen's own, else synthetic), trace, synthetic, fixed,
        sharegpt, azure2023 or a file of pairs. All but auto and trace replace a trace's own
        lengths.
      prompt_tokens: prompt length of each request, with lengths=fixed.
      output_tokens: output length of each request, with lengths=fixed.
      chars_per_token: characters per token, to convert texts of a log or of JSON; 0: not converted.
      length_min_tokens: least prompt and output length of a source's pairs, not of a trace's own.
      length_max_prompt_tokens: longest prompt of a source's pairs; longer ones are dropped.
      length_max_total_tokens: most prompt and output tokens of a source's pairs.

      start_s: start of the window, in the source's time before compression.
      duration_s: length of the window; 0: to the end.
      replicas: number of superposed copies of the trace; all but the first are rotated by random
        times.
      compression: factor by which arrivals are divided.
      max_requests: number of requests to keep, the first ones; 0: all.

      assignment: rule for model ids that name no model of the catalog: own (each id of a trace has
        a deployment of its own), popularity_rank or round_robin_by_first_seen (ids share the
        catalog's models); auto: own for a trace, popularity_rank for a generator.
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
    """Return the config that a mapping describes.

    Raises:
      SettingError: an unknown key, a value of the wrong type, or an invalid value.
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
