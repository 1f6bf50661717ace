"""Ranks of tensor parallelism from one artefact: what differs is an address, told, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from c2c.errors import DataError
from c2c.systems.medusa import Analysed, Artefact, Capture, OnDemand, analyse, make_artefact
from c2c.systems.program import Argument, Launch, Program
from experiments.papers.medusa import ranks
from experiments.papers.medusa.processes import Process, key_of
from experiments.papers.medusa.rank_programs import Rank, ranked
from pallas_kernels.repository import RepositoryWarning

WORLD = 4


def process(
    programs: Mapping[int, Program], number: int, seed: int, names: tuple[str, ...] | None = None
) -> Process:
    """Start a rank whose process is told what `names` say; None: all there is to tell."""
    rank = Rank.of(number, WORLD, seed)
    told = {k: v for k, v in rank.told.items() if names is None or k in names}
    mine = {batch: ranked(program, rank) for batch, program in programs.items()}
    return Process(mine, seed, has_guards=seed == 2, told_values=told)


def analysed(one: Process, two: Process, last: Process | None) -> tuple[Capture, Analysed]:
    first, second = one.capture(), two.capture()
    other = None if last is None else last.capture()
    return first, analyse(first, second, one.device.replace_address, other_rank=other)


def artefact_of(programs: Mapping[int, Program]) -> Artefact:
    first, made = ranks.captured(programs, WORLD)
    assert not made.refusals
    return make_artefact(key_of(programs, "ranks"), first, made)


@pytest.mark.parametrize("seed", range(12))
def test_every_rank_leaves_what_it_would_leave_by_itself(seed: int) -> None:
    programs = ranks.plain_programs(f"random:{seed}", WORLD)
    artefact = artefact_of(programs)
    for number in range(WORLD):
        row = ranks.restored_rank(artefact, programs, number, WORLD, [1])
        assert row["graphs"] == 1
    told = {artefact.told[t.name] for g in artefact.graphs for n in g.nodes for t in n.told}
    assert told == {"communicator", "rank", "shard_begin"}


def test_what_differs_and_was_not_told_is_refused() -> None:
    programs = ranks.plain_programs("random:3", WORLD)
    for hidden, parameter, byte in (("rank", 2, 0), ("shard_begin", 3, 8), ("communicator", 3, 0)):
        names = tuple({"rank", "shard_begin", "communicator"} - {hidden})
        seeds = ((0, 1), (0, 2), (WORLD - 1, 3))
        one, two, last = (process(programs, number, seed, names) for number, seed in seeds)
        _, made = analysed(one, two, last)
        (refusal,) = made.refusals
        assert (refusal.kernel, refusal.parameter, refusal.byte) == ("all_reduce", parameter, byte)
        assert "differs between" in refusal.why
        assert not made.graphs


def test_what_may_be_two_values_is_refused() -> None:
    programs = ranks.plain_programs("random:3", WORLD)
    one, two, last = (process(programs, n, s) for n, s in ((0, 1), (0, 2), (WORLD - 1, 3)))
    for each, number in ((one, 0), (two, 0), (last, WORLD - 1)):
        each.told["twin"] = number
    _, made = analysed(one, two, last)
    (refusal,) = made.refusals
    assert refusal.why == "may be rank or twin"


def test_a_word_that_only_middle_ranks_have_shows_when_the_graph_runs() -> None:
    """The bound of what two ranks can tell: validation on each rank is what finds the rest."""

    def odd(program: Program, number: int) -> Program:
        launches = list(program.launches)
        at = next(
            k for k, launch in enumerate(launches)
            if isinstance(launch, Launch) and program.kernels[launch.kernel].entry == "all_reduce"
        )  # fmt: skip
        launch = launches[at]
        assert isinstance(launch, Launch)
        packed = launch.arguments[3]
        changed = Argument(packed.data[:12] + bytes([number in (1, 2), 0, 0, 0]))
        launches[at] = replace(launch, arguments=(*launch.arguments[:3], changed))
        return replace(program, launches=tuple(launches))

    plain = ranks.plain_programs("random:3", WORLD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "ranked", lambda p, r: odd(ranked(p, r), r.number))
        artefact = artefact_of(plain)
        ranks.restored_rank(artefact, plain, 0, WORLD, [1])
        ranks.restored_rank(artefact, plain, WORLD - 1, WORLD, [1])
        with pytest.raises(DataError, match="rank 1: the graph of batch size 1 differs"):
            ranks.restored_rank(artefact, plain, 1, WORLD, [1])


def test_handles_alone_need_no_other_rank() -> None:
    programs = ranks.plain_programs("random:3", WORLD)
    first, made = analysed(process(programs, 0, 1), process(programs, 0, 2), None)
    assert not made.refusals
    artefact = make_artefact(key_of(programs, "handles"), first, made)
    assert {artefact.told[t.name] for n in artefact.graphs[0].nodes for t in n.told} == {
        "communicator"
    }
    rank = Rank.of(0, WORLD, 100)
    assert ranks.restored_rank(artefact, programs, 0, WORLD, [1])["graphs"] == 1
    with pytest.raises(DataError, match=r"rank 1: .* differs"):  # of no other rank
        ranks.restored_rank(artefact, programs, 1, WORLD, [1])
    other = ranks.start(programs, rank, 31)
    held = OnDemand(artefact, other.recorder, other.triggered(), {"rank": 0})
    with pytest.warns(RepositoryWarning, match="The value of communicator was not told"):
        assert held.graph(1) is None
    assert held.graph(1) is None  # said once


def test_a_rank_whose_buffers_hold_something_else_is_refused() -> None:
    programs = ranks.plain_programs("random:8", WORLD)
    one, two, last = (process(programs, n, s) for n, s in ((0, 1), (0, 2), (WORLD - 1, 3)))
    first, second, other = one.capture(), two.capture(), last.capture()
    replace_address = one.device.replace_address
    good = analyse(first, second, replace_address, other_rank=other)
    used = {p.allocation for n in good.graphs[0].nodes for p in n.patches}
    numbers = {name: k for k, name in enumerate(good.allocations)}
    name = next(name for name in good.contents if numbers[name] in used)
    changed = bytearray(other.contents[name])
    changed[17] ^= 1
    other = replace(other, contents={**other.contents, name: bytes(changed)})
    made = analyse(first, second, replace_address, other_rank=other)
    assert [r.why for r in made.refusals] == [
        "points to a buffer whose content differs on other ranks, at byte 17"
    ]


def test_ranks_that_do_not_do_the_same_are_no_ranks_of_one_model() -> None:
    programs = ranks.plain_programs("random:3", WORLD)
    others = ranks.plain_programs("random:4", WORLD)
    first, second = process(programs, 0, 1).capture(), process(programs, 0, 2).capture()
    device = process(programs, 0, 1).device
    with pytest.raises(DataError, match="two captures: "):
        analyse(first, second, device.replace_address, other_rank=process(others, 3, 3).capture())
    untold = process(programs, WORLD - 1, 3, ("rank",)).capture()
    with pytest.raises(DataError, match="only one was told communicator, shard_begin"):
        analyse(first, second, device.replace_address, other_rank=untold)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("world=1", "world=1: expected at least 2 ranks"),
        ("validated=[3]", "validated=3: expected one of 1, 2, 4, 8"),
        ("validated=[]", "validated=[]: expected at least one batch size"),
        ("models=[llama9]", "models='llama9': expected one of"),
        ("models=[]", "models=[]: expected at least one, without duplicates"),
        (
            "models=[yi_6b,yi_6b]",
            "models=['yi_6b', 'yi_6b']: expected at least one, without duplicates",
        ),
    ],
)
def test_wrong_settings_are_refused(
    argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ranks.main([argument]) == 2
    assert message in capsys.readouterr().err
