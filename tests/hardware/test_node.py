"""Nodes: what their files say, what transfers take and share, and what is refused."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.hardware import Node, PeerLink, conf_names, load_node, node_from_mapping, read_yaml

KINDS = ("network", "nvlink", "pcie")


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    count = draw(st.integers(2, 5))
    some = st.lists(st.integers(0, count - 1), min_size=2, max_size=count, unique=True)
    links = [
        PeerLink(
            name=f"k{n}", kind=draw(st.sampled_from(KINDS)), gbps=draw(st.floats(1.0, 900.0)),
            latency_s=draw(st.floats(1e-7, 1e-4)),
            between=tuple(draw(st.one_of(st.just([]), some))),
        )
        for n in range(draw(st.integers(0, 3)))
    ]  # fmt: skip
    gpus = draw(st.lists(st.sampled_from(["l40s", "b200"]), min_size=count, max_size=count))
    return Node(name="mine", gpus=tuple(gpus), links=tuple(links))


@given(nodes(), st.floats(0.0, 1e12))
def test_a_transfer_takes_the_first_link_that_joins_both(node: Node, nbytes: float) -> None:
    everyone = range(len(node.gpus))
    for a in everyone:
        for b in everyone:
            joining = [k for k in node.links if not k.between or {a, b} <= set(k.between)]
            link = joining[0] if joining and a != b else None
            assert node.link(a, b) == node.link(b, a) == link
            if link is None:
                assert (node.seconds(nbytes, a, b), node.ways(a, b)) == (math.inf, ())
                continue
            assert node.seconds(nbytes, a, b) == link.latency_s + nbytes / (link.gbps * 1e9)
            for c in everyone:
                if (other := node.link(a, c)) is None:
                    continue
                shared = set(node.ways(a, b)) & set(node.ways(a, c))
                is_port = link.kind != "nvlink" and other.kind == link.kind
                assert bool(shared) == (b == c or is_port)
            assert not set(node.ways(a, b)) & set(node.ways(b, a))  # each way has its own


def test_every_file_is_a_node_with_sources() -> None:
    for name in (name for name in conf_names("node") if name != "slices"):  # of a run's chip
        node = load_node(name)
        assert node.name == name
        assert [p.name for p in node.platforms] == list(node.gpus)
        assert all({"gbps", "latency_s"} <= set(link.source) for link in node.links)
        assert all(node.link(0, k) for k in range(1, len(node.gpus)))
    four = load_node("a100_40_pcie_x4")
    assert four.gpus == ("a100_40",) * 4
    assert four.seconds(25e9, 0, 3) == pytest.approx(1.0, rel=1e-4)
    assert set(four.ways(0, 1)) & set(four.ways(0, 2)) == {"slot out of 0"}
    assert not set(load_node("a100_40_nvlink").ways(0, 1)) & set(four.ways(0, 1))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("gpus", ["l40s"], r"node\.a100_l40s\.gpus=.*two or more"),
        ("gpus", ["l40s", "tpu"], r"node\.a100_l40s\.gpus='tpu'"),
        ("gpus", "l40s", r"node\.a100_l40s\.gpus='l40s': expected a list"),
        ("name", 3, r"node\.name=3"),
        ("left", "l40s", r"node\.left='l40s': expected a key among gpus, links, name, usd"),
        ("links", [], None),
        ("links", "card", r"links='card': expected a mapping"),
        ("links.card.between", [1, 1], r"links\.card\.between=\[1, 1\]: expected two or more diff"),
        ("links.card.between", [0, 2], r"between=\[0, 2\].*0 to 1"),
        ("links.card.between", [0.5, 1], r"between=\[0\.5, 1\]: expected a list of numbers"),
        ("links.card.kind", "wifi", r"links\.card\.kind='wifi': expected one of network, nvlink"),
        ("links.card.gbps", -1.0, r"links\.card\.gbps=-1\.0: expected GB/s above 0"),
        ("links.card.latency_s", 0.0, r"links\.card\.latency_s=0\.0"),
        ("links.card.rate", 1.0, r"links\.card\.rate=1\.0: expected a key among"),
        ("links.card.source", {}, r"links\.card\.source\.gbps=None"),
    ],
)
def test_what_cannot_be_is_refused_by_name(path: str, value: Any, message: str | None) -> None:
    data = deepcopy(read_yaml("node", "a100_l40s"))
    at: Any = data
    *folders, last = path.split(".")
    for name in folders:
        at = at[name]
    at[last] = value
    if message is None:
        assert node_from_mapping(data).link(0, 1) is None
        return
    with pytest.raises(SettingError, match=message):
        node_from_mapping(data)
