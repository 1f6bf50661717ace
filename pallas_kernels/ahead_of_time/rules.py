"""Hardware rules for machine code that no compiler checks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_kernels.ahead_of_time.descriptors import Descriptor
from pallas_kernels.ahead_of_time.ptx import Facts, Instruction, Kernel, Sum, follow, kernels, minus
from pallas_kernels.hopper import SHARED_BYTES_LIMIT

Found = Iterator[tuple[Instruction, str]]
Step = tuple[Facts, str]

OLDEST = 9  # groups of copies; waits are for fewer
WARPGROUP = 128  # threads, all of which arrive at Mosaic's barriers


@dataclass(frozen=True, slots=True)
class Copy:
    """A bulk copy by TMA."""

    load: bool  # into shared memory, else out of it
    shared: Sum  # address there
    nbytes: int  # 0: not known
    barrier: Sum | None  # of a load
    multicast: bool
    adds: bool
    sometimes: bool  # a branch only jumps over it


def copies(kernel: Kernel, descriptors: Sequence[Descriptor]) -> Mapping[int, Copy]:
    """Return a kernel's bulk copies, by index of instruction."""
    result = {}
    sometimes = {
        i
        for _, ways in kernel.blocks.values()
        if len(ways) == 2 and kernel.blocks[ways[0]][1] == ways[1:]
        for i in range(ways[0], kernel.blocks[ways[0]][0])
    }
    for i, one in enumerate(kernel.body):
        if not re.match(r"cp\.(reduce\.)?async\.bulk\.(tensor|shared|global)", one.opcode):
            continue
        load = ".global.mbarrier" in one.opcode
        tensor = ".tensor." in one.opcode
        to, source, *rest = one.operands
        nbytes = 0
        if tensor:
            used = descriptor(kernel, source if load else to, descriptors)
            nbytes = used.box_bytes if used else 0
        elif not kernel.value(rest[0])[1]:
            nbytes = kernel.value(rest[0])[0]
        result[i] = Copy(
            load,
            kernel.value(to if load else source),
            nbytes,
            kernel.value(rest[0 if tensor else 1]) if load else None,
            "multicast" in one.opcode,
            one.opcode.startswith("cp.reduce"),
            i in sometimes,
        )
    return result


def descriptor(
    kernel: Kernel, operand: str, descriptors: Sequence[Descriptor]
) -> Descriptor | None:
    """Return an address's descriptor, 128 bytes apart."""
    offset, names = kernel.value(operand)
    is_parameter = len(names) == 1 and all("_param_" in name for name, _ in names)
    return (
        descriptors[offset // 128]
        if is_parameter and offset % 128 == 0 and offset // 128 < len(descriptors)
        else None
    )


# Each rule is a function of a kernel's PTX that yields violations; R11 counts in machine code.
# Rules about order hold on every path over basic blocks (`ptx.follow`). `pallas_kernels/README.md`
# has the table, with the limits of each rule.
def tensor_maps(kernel: Kernel, descriptors: Sequence[Descriptor]) -> Found:
    """R1: descriptors meet the driver's rules, and copies match them."""
    first = kernel.body[0]
    for number, table in enumerate(descriptors):
        yield from ((first, f"descriptor {number}: {fault}") for fault in table.faults())
    for i, copy in copies(kernel, descriptors).items():
        one = kernel.body[i]
        if match := re.search(r"\.tensor\.(\d)d", one.opcode):
            map_ = descriptor(kernel, one.operands[1 if copy.load else 0], descriptors)
            if map_ is None:
                yield one, "has a descriptor that is not known"
            elif len(map_.sizes) != int(match[1]):
                yield one, f"has {match[1]} coordinates, its descriptor {len(map_.sizes)}"
        align = 128 if match else 16
        if copy.shared[0] % align:
            yield one, f"shared memory at {copy.shared[0]}, allowed: multiples of {align}"
        if not match and copy.nbytes % 16:
            yield one, f"{copy.nbytes} bytes, allowed: multiples of 16"


def proxies(kernel: Kernel, descriptors: Sequence[Descriptor]) -> Found:
    """R2: stores to shared memory pass a fence, then a barrier, before TMA and wgmma."""
    stores = {i for i, copy in copies(kernel, descriptors).items() if not copy.load}
    # a single value that threads hand to threads
    handed = {kernel.value(o.operands[1]) for o in kernel.body if o.opcode.startswith("ld.shared")}
    events = {}
    for i, one in enumerate(kernel.body):
        if one.opcode.startswith(("st.shared", "stmatrix")):
            if "%" in one.operands[0] or kernel.value(one.operands[0]) not in handed:
                events[i] = "write"
        elif _always(one, "fence.proxy.async") and not one.opcode.endswith("global"):
            events[i] = "fence"
        elif _is_barrier(one):
            events[i] = "barrier"
        elif i in stores or one.opcode.startswith("wgmma.mma"):
            events[i] = "read"

    def step(facts: Facts, event: str) -> Step:
        if event == "write":
            return facts | {"fence"}, ""
        if event == "fence":
            return frozenset({"barrier"}) if facts else facts, ""
        if event == "barrier":
            return facts - {"barrier"}, ""
        lacking = f"reads what threads stored without a {min(facts, default='')} before"
        return facts, lacking if facts else ""

    return follow(kernel, events, step)


def groups(kernel: Kernel, descriptors: Sequence[Descriptor]) -> Found:
    """R3: TMA has read shared memory before another write, and before the CTA ends."""
    copy_of = copies(kernel, descriptors)
    events = _group_events(kernel, copy_of)

    def step(facts: Facts, event: tuple[str, Any]) -> Step:
        kind, argument = event
        match kind:
            case "store":
                return facts | {(argument, 0)}, ""
            case "commit":
                return frozenset(
                    (c, age if age < 0 else min(age + 1, OLDEST)) for c, age in facts
                ), ""
            case "wait":
                return frozenset(
                    (c, -1 if age > argument or (c and c.sometimes and age) else age)
                    for c, age in facts
                ), ""
            case "barrier":
                return frozenset((c, age) for c, age in facts if age >= 0), ""
            case "change":
                forgot = {
                    (c, a) for c, a in facts if c and argument & {name for name, _ in c.shared[1]}
                }
                return facts - forgot | {(None, age) for _, age in forgot}, ""
            case "end":
                open_ = any(age >= 0 for _, age in facts)
                return facts, "ends before TMA has read shared memory" if open_ else ""
        wrong = set()
        for copy, age in facts:
            if copy is None and age == OLDEST:
                wrong.add("writes shared memory while nothing waits for stores from it")
            if copy and any(_overlap(copy, target) for target in argument):
                lack = "barrier after the wait" if age < 0 else "wait"
                wrong.add(f"writes shared memory that TMA may still read: no {lack}")
        return facts, min(wrong, default="")

    return follow(kernel, events, step)


def _group_events(kernel: Kernel, copies: Mapping[int, Copy]) -> Mapping[int, tuple[str, Any]]:
    targets = _stored_next(kernel, copies)
    leaves = {name for copy in copies.values() for name, _ in copy.shared[1]}
    events: dict[int, tuple[str, Any]] = {}
    for i, one in enumerate(kernel.body):
        if i in copies and not copies[i].load:
            events[i] = "store", copies[i]
        elif i in copies:
            events[i] = "write", frozenset({copies[i]})
        elif one.opcode.startswith(("st.shared", "stmatrix")):
            events[i] = "write", targets.get(i, frozenset())
        elif one.opcode.startswith("cp.async.bulk.commit"):
            events[i] = "commit", None
        elif _always(one, "cp.async.bulk.wait"):
            events[i] = "wait", int(one.operands[0])
        elif _is_barrier(one):
            events[i] = "barrier", None
        elif one.opcode.startswith(("ret", "exit")):
            events[i] = "end", None
        elif changed := leaves.intersection(one.writes()):
            events[i] = "change", changed
    return events


def _stored_next(kernel: Kernel, copies: Mapping[int, Copy]) -> Mapping[int, frozenset[Copy]]:
    before: dict[int, frozenset[Copy]] = {}
    result: dict[int, frozenset[Copy]] = {}
    changed = True
    while changed:
        changed = False
        for begin in reversed([*kernel.blocks]):
            end, after = kernel.blocks[begin]
            stores = frozenset[Copy]().union(*(before.get(b, frozenset()) for b in after))
            for i in reversed(range(begin, end)):
                if i in copies and not copies[i].load:
                    stores = frozenset({copies[i]})
                result[i] = stores
            changed |= before.get(begin) != stores
            before[begin] = stores
    return result


def _overlap(first: Copy, second: Copy) -> bool:
    apart, names = minus(first.shared, second.shared)
    return not names and -max(second.nbytes, 1) < -apart < max(first.nbytes, 1)


def products(kernel: Kernel, _: Sequence[Descriptor]) -> Found:
    """R4: wgmma's registers are fenced after writes, and waited for before use."""
    sums, inputs = {}, {}
    for i, one in enumerate(kernel.body):
        if one.opcode.startswith("wgmma.mma"):
            sums[i] = frozenset(re.findall(r"%\w+", one.operands[0]))
            registers = one.operands[1] if one.operands[1].startswith("{") else ""
            inputs[i] = frozenset(re.findall(r"%\w+", registers))
    every = frozenset[str]().union(*sums.values(), *inputs.values())
    events: dict[int, tuple[str, Any, Any]] = {}
    for i, one in enumerate(kernel.body):
        if i in sums:
            events[i] = "multiply", sums[i], inputs[i]
        elif one.opcode.startswith("wgmma.fence"):
            events[i] = "fence", None, None
        elif one.opcode.startswith("wgmma.commit"):
            events[i] = "commit", None, None
        elif one.opcode.startswith("wgmma.wait"):
            events[i] = "wait", int(one.operands[0]), None
        else:
            written = every.intersection(one.writes())
            read = every.intersection(
                one.reads() if one.writes() else re.findall(r"%\w+", " ".join(one.operands))
            )
            if written or read:
                events[i] = "use", written, read

    def step(facts: Facts, event: tuple[str, Any, Any]) -> Step:
        kind, first, second = event
        match kind:
            case "fence":
                return frozenset(f for f in facts if f[1] != "written"), ""
            case "commit":
                return frozenset((r, k, min(age + 1, OLDEST)) for r, k, age in facts), ""
            case "wait":
                return frozenset(f for f in facts if f[1] == "written" or f[2] <= first), ""
            case "multiply":
                unfenced = [r for r, k, _ in facts if k == "written" and r in first | second]
                rest = {f for f in facts if f[0] not in first}
                new = {(r, "sums", 0) for r in first} | {(r, "input", 0) for r in second}
                wrong = f"multiplies {min(unfenced)} before a wgmma.fence" if unfenced else ""
                return frozenset(rest | new), wrong
        early = [
            r
            for r, k, _ in facts
            if (k == "sums" and r in first | second) or (k == "input" and r in first)
        ]
        wrong = f"uses {min(early)} before a wgmma.wait_group" if early else ""
        return facts | {(r, "written", 0) for r in first}, wrong

    return follow(kernel, events, step)


def barriers(kernel: Kernel, descriptors: Sequence[Descriptor]) -> Found:
    """R5: loads are expected, by bytes, on their barriers."""
    loads = {i: copy for i, copy in copies(kernel, descriptors).items() if copy.load}
    load_barriers = {copy.barrier for copy in loads.values() if copy.barrier}
    leaves = {
        name: {b for b in load_barriers if name in dict(b[1])}
        for b in load_barriers
        for name, _ in b[1]
    }
    events: dict[int, tuple[str, Any]] = {}
    for i, one in enumerate(kernel.body):
        if one.opcode.startswith("mbarrier.arrive.expect_tx"):
            events[i] = "expect", tuple(map(kernel.value, one.operands[1:]))
        elif i in loads:
            events[i] = "load", loads[i]
        elif changed := frozenset().union(*(leaves.get(name, set()) for name in one.writes())):
            events[i] = "change", changed
    cluster = kernel.declared("reqnctapercluster", 1)

    def step(facts: Facts, event: tuple[str, Any]) -> Step:
        kind, argument = event
        if kind == "expect":
            barrier, (count, names) = argument
            remainder = {(b, n) for b, n in facts if b != barrier}
            return frozenset(remainder | {(barrier, 0 if names else count * WARPGROUP)}), ""
        if kind == "change":
            return frozenset(
                {f for f in facts if f[0] not in argument} | {(b, -1) for b in argument}
            ), ""
        expected = {n for b, n in facts if b == argument.barrier}
        after = frozenset({f for f in facts if f[0] != argument.barrier} | {(argument.barrier, -1)})
        if -1 in expected or not expected:
            return after, "loads without expecting it on its barrier before"
        for nbytes in sorted(expected - {0}):
            times, rest = divmod(nbytes, argument.nbytes or nbytes)
            if rest or (times > 1 and not argument.multicast) or cluster % max(times, 1):
                return after, f"loads {argument.nbytes} bytes where {nbytes} are expected"
        return after, ""

    return follow(kernel, events, step, frozenset((b, -1) for b in load_barriers))


def arrivals(kernel: Kernel, _: Sequence[Descriptor]) -> Found:
    """R10: wgmma reads shared memory after a wait for a barrier, and again after another."""
    products_ = {i for i, one in enumerate(kernel.body) if one.opcode.startswith("wgmma.mma")}
    waits = {i for i, one in enumerate(kernel.body) if one.opcode.startswith("mbarrier.try_wait")}

    def step(facts: Facts, event: int) -> Step:
        if event in waits:
            return frozenset(), ""
        return facts | {
            event
        }, "multiplies what no barrier was waited for" if event in facts else ""

    return follow(kernel, {i: i for i in products_ | waits}, step, frozenset(products_))


def starts(kernel: Kernel, _: Sequence[Descriptor]) -> Found:
    """R6: barriers are visible to all users before use."""
    clustered = kernel.declared("reqnctapercluster", 1) > 1
    kinds = {
        "mbarrier.init": "make",
        "fence.mbarrier_init": "release",
        "barrier.cluster.wait": "cluster",
        "bar.sync": "CTA",
        **dict.fromkeys(("mbarrier", "cp.async.bulk.tensor", "mapa"), "use"),
    }
    events = {}
    for i, one in enumerate(kernel.body):
        if kind := next((kinds[k] for k in kinds if one.opcode.startswith(k)), None):
            events[i] = kind

    def step(facts: Facts, event: str) -> Step:
        match event:
            case "make":
                return facts | {"fence.mbarrier_init", "bar.sync"}, ""
            case "release":
                rest = {"barrier.cluster"} if clustered and facts else set()
                return facts - {"fence.mbarrier_init"} | rest, ""
            case "cluster":
                return facts - {"barrier.cluster"}, ""
            case "CTA":
                return facts - {"bar.sync"}, ""
        lacking = f"uses a barrier without {min(facts, default='')} after its making"
        return facts, lacking if facts else ""

    return follow(kernel, events, step)


def departures(kernel: Kernel, descriptors: Sequence[Descriptor]) -> Found:
    """R9: a CTA that sends to its cluster waits for the cluster after the last copy."""
    count_of = {
        kernel.value(one.operands[0])[0]: kernel.value(one.operands[1])
        for one in kernel.body
        if one.opcode.startswith("mbarrier.init")
    }
    # barriers of a cluster by how often they are arrived at, unlike those of a CTA
    remote = {
        count_of.get(kernel.value(one.operands[1])[0])
        for one in kernel.body
        if one.opcode.startswith("mapa")
    }
    waits = [
        i
        for i, one in enumerate(kernel.body)
        if one.opcode.startswith("mbarrier.try_wait")
        and count_of.get(kernel.value(one.operands[1])[0]) in remote
    ]
    for i, copy in copies(kernel, descriptors).items():
        if copy.multicast and not any(
            _reaches(kernel, i, wait) and not _reaches(kernel, wait, i) for wait in waits
        ):
            yield kernel.body[i], "no wait for the cluster after the last such copy"


def _reaches(kernel: Kernel, first: int, second: int) -> bool:
    block = max(begin for begin in kernel.blocks if begin <= first)
    if first < second < kernel.blocks[block][0]:
        return True
    seen, todo = set[int](), list(kernel.blocks[block][1])
    while todo:
        begin = todo.pop()
        if begin not in seen:
            seen.add(begin)
            todo += kernel.blocks[begin][1]
    return max(begin for begin in kernel.blocks if begin <= second) in seen


def read_back(kernel: Kernel, descriptors: Sequence[Descriptor]) -> Found:
    """R7: sums by TMA are complete, for all threads, before reads."""
    copy_of = copies(kernel, descriptors)
    events = {}
    for i, one in enumerate(kernel.body):
        if i in copy_of and copy_of[i].adds:
            events[i] = "add"
        elif _always(one, "cp.async.bulk.wait_group") and ".read" not in one.opcode:
            events[i] = "wait" if one.operands[0] == "0" else ""
        elif _is_barrier(one):
            events[i] = "barrier"
        elif re.match(r"ld\.(?!shared|param|const|local)", one.opcode):
            registers = re.findall(r"%\w+", one.operands[1])
            if any("%tid.x" in kernel.roots(name) for name in registers):  # others are scalars
                events[i] = "read"

    def step(facts: Facts, event: str) -> Step:
        if event == "add":
            return frozenset({"wait for completion"}), ""
        if event == "wait":
            return frozenset({"barrier"}) if facts else facts, ""
        if event == "barrier":
            return facts - {"barrier"}, ""
        wrong = f"reads sums without a {min(facts, default='')} before"
        return facts, wrong if event == "read" and facts else ""

    return follow(kernel, events, step)


def limits(kernel: Kernel, _: Sequence[Descriptor]) -> Found:
    """R8: threads, clusters, registers and memory are within limits."""
    first = kernel.body[0]
    threads = kernel.declared("maxntid", 0)
    cluster = kernel.declared("reqnctapercluster", 1)
    if not 0 < threads <= 1024 or threads % WARPGROUP:
        yield first, f"{threads} threads, allowed: multiples of {WARPGROUP} up to 1024"
    if cluster not in (1, 2, 4, 8):
        yield first, f"a cluster of {cluster}, allowed: 1, 2, 4, 8"
    for one in kernel.body:
        if one.opcode.startswith("setmaxnreg"):
            count = int(one.operands[0])
            if count % 8 or not 24 <= count <= 240:
                yield one, f"{count} registers, allowed: multiples of 8 from 24 to 240"
        if one.opcode.startswith(("ld.local", "st.local")):
            yield one, "uses local memory"
        if one.opcode.startswith("mbarrier.init"):
            address = kernel.value(one.operands[0])[0]
            if address % 8 or address + 8 > SHARED_BYTES_LIMIT:
                yield one, f"a barrier at {address}: not 8-byte aligned below {SHARED_BYTES_LIMIT}"


def _is_barrier(one: Instruction) -> bool:
    return _always(one, "bar.sync", "barrier.cluster.wait")


def _always(one: Instruction, *opcodes: str) -> bool:
    return not one.predicate and one.opcode.startswith(opcodes)


RULES = {
    "R1": tensor_maps,
    "R2": proxies,
    "R3": groups,
    "R4": products,
    "R5": barriers,
    "R6": starts,
    "R7": read_back,
    "R8": limits,
    "R9": departures,
    "R10": arrivals,
}


def findings(ptx: str, descriptors: Sequence[Descriptor], code: str) -> tuple[str, ...]:
    """Return a kernel's violations: rule, line of PTX, fault."""
    (kernel,) = kernels(ptx)
    messages = [
        f"{name}, line {one.line} of the kernel, {one.opcode}: {fault}"
        for name, rule in RULES.items()
        for one, fault in rule(kernel, descriptors)
    ]
    # R11: where sums are read back, each wait for completion throws old lines out of L1
    if any(one.opcode.startswith("cp.reduce") for one in kernel.body):
        waits = sum(one.opcode == "cp.async.bulk.wait_group" for one in kernel.body)
        if code.count("CCTL.IVALL") < waits:
            messages.append(
                f"R11: L1 is invalidated {code.count('CCTL.IVALL')} times, of {waits} waits"
            )
    return tuple(messages)
