"""Traces of coding agents as the project's rows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from c2c.errors import DataError

__all__ = ["agent_table", "is_graph", "is_weka"]

_ROUNDING_S: Final = 1e-6
_MOST_HASH: Final = 1 << 32  # of a session's own numbers, which the session's number precedes


@dataclass(slots=True, kw_only=True)
class _Node:
    at_s: float
    end_s: float
    model: str | None
    prompt: Any
    output: Any
    hashes: list[int]
    parents: list[_Node] = field(default_factory=list)
    think_s: float = 0.0
    calls_tool: bool = False
    continues: _Node | None = None  # the earlier request of its context
    session: int = 0
    turn: int = 0


def is_weka(record: Mapping[str, Any]) -> bool:
    """Return whether a record is in Weka's format."""
    return isinstance(record.get("requests"), list) and {"id", "block_size"} <= record.keys()


def is_graph(records: Iterable[Mapping[str, Any] | None]) -> bool:
    """Return whether records name those that they wait for."""
    return any(one and {"request_id", "wait_for"} <= one.keys() for one in records)


def agent_table(path: Path, records: Sequence[Mapping[str, Any] | None]) -> tuple[pa.Table, int]:
    """Return all requests by arrival, and the count of malformed lines.

    A request waits for its session's earlier ends, then for the time passed. An answer's hashes are
    of the prompt that continues it.

    Source: Weka's fields as in ai-dynamo/aiperf, `loader/weka_trace_models.py` (AgentX, PR 1165);
    Dynamo's agentic Mooncake rows, `AgenticMooncakeRow` of its crate data_gen.
    """
    there = [record for record in records if record is not None]
    block_tokens = 0
    metadata = {"format": "weka" if is_weka(there[0]) else "dynamo"}
    try:
        if is_weka(there[0]):
            block_tokens = _block_tokens(path, there)
            sessions = [_weka(path, number, one) for number, one in enumerate(there)]
        else:
            sessions = _graphs(path, there)
        for nodes in sessions if block_tokens else ():
            _with_answers(nodes, block_tokens)
    except DataError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            str(path), f"a request lacks a field or has another type: {error}"
        ) from None
    for number, nodes in enumerate(sessions):
        nodes.sort(key=lambda node: node.at_s)  # stable: after those that it waits for
        for turn, node in enumerate(nodes, 1):
            node.session, node.turn = number, turn
    rows = sorted((node for nodes in sessions for node in nodes), key=lambda node: node.at_s)
    table = pa.Table.from_pylist([_row(node) for node in rows])
    has = {"model": any(node.model for node in rows), "hash_ids": any(node.hashes for node in rows)}
    absent = [name for name, is_there in has.items() if not is_there]
    table = table.drop_columns(absent)
    if block_tokens:
        metadata |= {"block_tokens": str(block_tokens), "keys_answers": "1"}
    return table.replace_schema_metadata(metadata), len(records) - len(there)


def _row(node: _Node) -> dict[str, str | None]:
    return {
        "arrival_s": repr(node.at_s),
        "model": node.model,
        "prompt_tokens": json.dumps(node.prompt),
        "output_tokens": json.dumps(node.output),
        "session_id": str(node.session),
        "turn": str(node.turn),
        "waits_for": json.dumps(sorted(parent.turn for parent in node.parents)),
        "think_s": repr(node.think_s) if node.parents else None,
        "calls_tool": "true" if node.calls_tool else "false",
        "hash_ids": json.dumps(node.hashes),
    }


def _block_tokens(path: Path, sessions: Sequence[Mapping[str, Any]]) -> int:
    sizes = {one.get("block_size") for one in sessions}
    size = next(iter(sizes))
    if len(sizes) != 1 or not isinstance(size, int) or size < 1:
        shown = ", ".join(sorted(map(str, sizes)))
        raise DataError(str(path), f"block_size is {shown}: one whole number above 0 is allowed")
    return size


def _weka(path: Path, number: int, session: Mapping[str, Any]) -> list[_Node]:
    nodes: list[_Node] = []
    main: list[_Node] = []
    subagents: list[tuple[float, _Node]] = []  # end of each that no request has waited for
    for entry in session["requests"]:
        if entry.get("type") != "subagent":
            node = _weka_node(path, number, session, entry, float(entry["t"]))
            joined = [last for end_s, last in subagents if end_s <= node.at_s + _ROUNDING_S]
            subagents = [one for one in subagents if one[1] not in joined]
            _wait(node, main, joined)
            main.append(node)
            nodes.append(node)
            continue
        session_nodes: list[_Node] = []
        begin_s = float(entry["t"])
        for inner in entry["requests"]:
            at_s = float(inner["t"])  # of the session; in older files of the sub-agent
            at_s += begin_s if at_s + _ROUNDING_S < begin_s else 0.0
            node = _weka_node(path, number, session, inner, at_s)
            _wait(node, session_nodes, [])
            if not node.parents:
                _wait(node, main, [])
                node.continues = None
            session_nodes.append(node)
        if session_nodes:
            last = max(session_nodes, key=lambda node: node.end_s)
            duration_ms = entry.get("duration_ms")
            end_s = last.end_s if duration_ms is None else begin_s + float(duration_ms) / 1e3
            subagents.append((max(end_s, last.at_s), last))
            nodes += session_nodes
    return nodes


def _weka_node(
    path: Path, number: int, session: Mapping[str, Any], request: Mapping[str, Any], at_s: float
) -> _Node:
    took_s = float(request.get("api_time") or 0.0)
    hashes = request.get("hash_ids") or []
    if session.get("hash_id_scope", "local") == "local":
        if any(not 0 <= one < _MOST_HASH for one in hashes):
            raise DataError(str(path), f"hash_ids of {session['id']} are not all within [0, 2**32)")
        hashes = [number * _MOST_HASH + one for one in hashes]
    if not (math.isfinite(at_s) and math.isfinite(took_s)):
        raise DataError(str(path), f"a time of {session['id']} is not finite")
    return _Node(
        at_s=at_s,
        end_s=at_s + max(0.0, took_s),
        model=request.get("model"),
        prompt=request["in"],
        output=request["out"],
        hashes=hashes,
        calls_tool=request.get("stop") == "tool_use",
    )


def _wait(node: _Node, stream: Sequence[_Node], joined: Sequence[_Node]) -> None:
    ended = [one for one in stream if one.end_s <= node.at_s + _ROUNDING_S]
    if ended:
        node.continues = max(ended, key=lambda one: one.end_s)
        node.parents = [node.continues]
    node.parents += joined
    if node.parents:
        node.think_s = max(0.0, node.at_s - max(parent.end_s for parent in node.parents))


def _with_answers(nodes: Sequence[_Node], block_tokens: int) -> None:
    hashes_of = {id(node): node.hashes[: int(node.prompt) // block_tokens] for node in nodes}
    for node in nodes:
        node.hashes = hashes_of[id(node)]
    for node in nodes:
        if (before := node.continues) is None:
            continue
        prefix, now = hashes_of[id(before)], hashes_of[id(node)]
        if now[: len(prefix)] == prefix:
            whole = (int(before.prompt) + int(before.output)) // block_tokens
            before.hashes = max(before.hashes, now[:whole], key=len)


def _graphs(path: Path, rows: Sequence[Mapping[str, Any]]) -> list[list[_Node]]:
    by_id: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row["request_id"] in by_id:
            raise DataError(str(path), f"request_id={row['request_id']} occurs more than once")
        by_id[row["request_id"]] = row
    children: dict[str, list[str]] = {name: [] for name in by_id}
    waiting: dict[str, int] = {}
    for name, row in by_id.items():
        parents = list(dict.fromkeys(row.get("wait_for") or []))
        for parent in parents:
            if parent not in by_id:
                raise DataError(str(path), f"wait_for={parent} is the id of no request")
            children[parent].append(name)
        waiting[name] = len(parents)
    ready = [name for name, count in waiting.items() if not count]
    nodes: dict[str, _Node] = {}
    group: dict[str, str] = {}  # root of each request's session
    for name in ready:  # which grows meanwhile
        parents = list(dict.fromkeys(by_id[name].get("wait_for") or []))
        nodes[name] = _graph_node(by_id[name], [nodes[parent] for parent in parents])
        _join(group, name, f"session {by_id[name].get('session_id', name)}")
        for parent in parents:
            _join(group, name, parent)
            if by_id[parent].get("session_id") == by_id[name].get("session_id"):
                nodes[name].continues = nodes[parent]
                nodes[parent].calls_tool |= float(by_id[name].get("tool_wait_ms") or 0.0) > 0.0
        for child in children[name]:
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    if len(nodes) < len(by_id):
        stuck = next(name for name in by_id if name not in nodes)
        raise DataError(str(path), f"request_id={stuck} waits for itself, over others or at once")
    sessions: dict[str, list[_Node]] = {}
    for name, node in nodes.items():
        sessions.setdefault(_root(group, name), []).append(node)
    return list(sessions.values())


def _graph_node(row: Mapping[str, Any], parents: list[_Node]) -> _Node:
    think_s = (float(row.get("delay") or row.get("delay_ms") or 0.0)) / 1e3
    think_s = max(0.0, think_s + float(row.get("tool_wait_ms") or 0.0) / 1e3)
    stated = row.get("timestamp", row.get("created_time"))
    earliest_s = max((parent.at_s + think_s for parent in parents), default=-math.inf)
    if stated is None and not parents:
        raise KeyError(f"timestamp of {row['request_id']}")
    at_s = max(earliest_s, -math.inf if stated is None else float(stated) / 1e3)
    return _Node(
        at_s=at_s,
        end_s=at_s,
        model=row.get("model"),
        prompt=row.get("input_length", row.get("input_tokens")),
        output=row.get("output_length", row.get("output_tokens")),
        hashes=row.get("hash_ids") or [],
        parents=parents,
        think_s=think_s,
    )


def _root(group: dict[str, str], name: str) -> str:
    while (above := group.setdefault(name, name)) != name:
        group[name] = group.setdefault(above, above)
        name = above
    return name


def _join(group: dict[str, str], one: str, other: str) -> None:
    group[_root(group, one)] = _root(group, other)
