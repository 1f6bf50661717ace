"""Jax's interpreter of GPU kernels at a fraction of its cost: the same steps, nothing compiled."""

from __future__ import annotations

import functools
import inspect
import operator
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax._src import callback
from jax._src.pallas.mosaic.interpret import thread_map
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks, shared_memory

from tests.pallas_kernels import late_hardware

# A thread's program is carried out as it stands: its calls of Python as jax makes them, integers by
# NumPy, anything else by jax, operation by operation. One thing differs: every other copy into
# shared memory arrives as late as it may, when somebody waits for it. A tile that is read without a
# wait is then NaN, and one that is loaded into a slot too early is still seen. If races are
# detected by their clocks, nothing differs.

Values = list[Any]  # arrays of NumPy, or its numbers

_EXACT = {np.dtype(of) for of in (bool, np.int8, np.uint8, np.int16, np.uint16, np.int32)}
_FLOATS = {np.dtype(of) for of in (np.float16, ml_dtypes.bfloat16, np.float32)}


def _run_jaxpr(jaxpr: Any, consts: Any, *arguments: Any) -> None:
    """Run one thread of a kernel."""
    with np.errstate(all="ignore"):  # numbers wrap and overflow as a GPU's do
        _evaluate(jaxpr, consts, [_number(argument) for argument in arguments])


def _evaluate(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> Values:
    """Return what a program gives, its operations carried out one after another."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    found = dict(zip(jaxpr.constvars, map(_number, consts), strict=True))
    found.update(zip(jaxpr.invars, arguments, strict=True))

    def value(of: Any) -> Any:
        return _literal(of) if hasattr(of, "val") else found[of]

    for equation in jaxpr.eqns:
        given = [value(of) for of in equation.invars]
        carry_out = _RULES.get(equation.primitive.name, _by_jax)
        out = carry_out(equation, *given)
        if not equation.primitive.multiple_results:
            out = [out]
        found.update(zip(equation.outvars, out, strict=True))
    return [value(of) for of in jaxpr.outvars]


def _closed(program: Any, arguments: Sequence[Any]) -> Values:
    return _evaluate(program, program.consts, arguments)


def _number(given: Any) -> Any:
    """Return an array of NumPy, a number where it has no axes."""
    return np.asarray(given)[()]


def _literal(of: Any) -> Any:
    return np.asarray(of.val, of.aval.dtype)[()]


def _by_jax(equation: Any, *given: Any) -> Any:
    """Carry out one operation as jax would outside of a program."""
    out = equation.primitive.bind(*map(jnp.asarray, given), **equation.params)
    return jax.tree.map(_number, out)


def _cond(equation: Any, index: Any, *operands: Any) -> Values:
    branches = equation.params["branches"]
    return _closed(branches[min(max(int(index), 0), len(branches) - 1)], operands)


def _while(equation: Any, *given: Any) -> Values:
    params, given = equation.params, list(given)
    own, rest = given[: params["cond_nconsts"]], given[params["cond_nconsts"] :]
    shared, carry = rest[: params["body_nconsts"]], rest[params["body_nconsts"] :]
    while _closed(params["cond_jaxpr"], own + carry)[0]:
        carry = _closed(params["body_jaxpr"], shared + carry)
    return carry


def _scan(equation: Any, *given: Any) -> Values:
    params = equation.params
    if not params["length"]:
        return list(_by_jax(equation, *given))
    shared, carry, rows = (list(part) for part in params["ft_in"].update(given).unpack())
    outs: list[Values] = []
    order = range(params["length"])
    for at in reversed(order) if params["reverse"] else order:
        found = _closed(params["jaxpr"], [*shared, *carry, *(array[at] for array in rows)])
        carry, out = found[: len(carry)], found[len(carry) :]
        outs.append(out)
    stacked = zip(*(reversed(outs) if params["reverse"] else outs), strict=True)
    return [*carry, *map(np.stack, stacked)]


def _jit(equation: Any, *given: Any) -> Values:
    return _closed(equation.params["jaxpr"], given)


def _step(equation: Any, *given: Any) -> Values:
    """Make one of the calls that a kernel is made of."""
    return [_number(out) for out in _call(*given, callback=equation.params["callback"])]


def _of_numpy(carry_out: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of an operation that NumPy has too, for types that it rounds as jax does."""

    def rule(equation: Any, *given: Any) -> Any:
        if all(of.aval.dtype in _EXACT or of.aval.dtype in _FLOATS for of in equation.invars):
            return carry_out(*given)
        return _by_jax(equation, *given)

    return rule


def _div(equation: Any, a: Any, b: Any) -> Any:
    if equation.invars[0].aval.dtype not in _EXACT or np.any(b == 0):
        return _by_jax(equation, a, b)
    down = a // b  # to the next smaller one, where XLA rounds towards zero
    return (down + ((a - down * b != 0) & ((a < 0) != (b < 0)))).astype(a.dtype)


def _rem(equation: Any, a: Any, b: Any) -> Any:
    if equation.invars[0].aval.dtype not in _EXACT or np.any(b == 0):
        return _by_jax(equation, a, b)
    return np.fmod(a, b)


def _convert(equation: Any, given: Any) -> Any:
    old, new = equation.invars[0].aval.dtype, np.dtype(equation.params["new_dtype"])
    exact = old in _EXACT and (new in _EXACT or (new in _FLOATS and old.itemsize == 1))
    if exact or (old in _FLOATS and new in _FLOATS) or (old, new) == (np.int32, np.float32):
        return given.astype(new)
    return _by_jax(equation, given)


def _select(equation: Any, which: Any, *cases: Any) -> Any:
    if equation.invars[0].aval.dtype != np.bool_:
        return _by_jax(equation, which, *cases)
    if np.ndim(which):
        return np.where(which, cases[1], cases[0])
    return cases[bool(which)]


def _broadcast(equation: Any, given: Any, *sizes: Any) -> Any:
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    if sizes:
        return _by_jax(equation, given, *sizes)
    own = [1] * len(shape)
    for place, size in zip(places, np.shape(given), strict=True):
        own[place] = size
    return np.broadcast_to(np.reshape(given, own), shape)


def _slice(equation: Any, given: Any) -> Any:
    params = equation.params
    strides = params["strides"] or (1,) * given.ndim
    ends = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return given[tuple(slice(*end) for end in ends)]


def _dynamic_slice(equation: Any, given: Any, *begins: Any) -> Any:
    if len(begins) != given.ndim:
        return _by_jax(equation, given, *begins)
    sizes = equation.params["slice_sizes"]
    places = zip(begins, sizes, given.shape, strict=True)
    kept = ((min(max(int(begin), 0), whole - size), size) for begin, size, whole in places)
    return given[tuple(slice(begin, begin + size) for begin, size in kept)]


_RULES: dict[str, Callable[..., Any]] = {
    "io_callback": _step,
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    "jit": _jit,
    "div": _div,
    "rem": _rem,
    "convert_element_type": _convert,
    "select_n": _select,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "squeeze": lambda equation, given: _number(np.squeeze(given, equation.params["dimensions"])),
    "multiple_of": lambda equation, given: given,
    **{
        name: _of_numpy(carry_out)
        for name, carry_out in {
            "add": operator.add, "sub": operator.sub, "mul": operator.mul, "lt": operator.lt,
            "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq,
            "ne": operator.ne, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
        }.items()
    },
}  # fmt: skip


def _of_integers(carry_out: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of an operation where jax and NumPy may differ in NaN and signs of zero."""

    def rule(equation: Any, *given: Any) -> Any:
        if equation.invars[0].aval.dtype in _EXACT:
            return carry_out(*given)
        return _by_jax(equation, *given)

    return rule


_RULES |= {
    "max": _of_integers(np.maximum),
    "min": _of_integers(np.minimum),
    "clamp": _of_integers(lambda low, given, high: np.minimum(np.maximum(given, low), high)),
    "sign": _of_integers(np.sign),
}


def _call(*arguments: Any, callback: Any, **_: Any) -> Any:
    """Call Python with numbers and arrays of NumPy; jax would put each on a device first."""
    given = [_own(argument) for argument in arguments]
    if getattr(callback.callback_func, "func", None) is gpu_callbacks._swap:
        written = _place_of_value(callback.in_tree)
        given[written] = np.array(arguments[written])  # with its dtype, a number too
    return jax.tree.map(np.array, callback(*given))


def _own(argument: Any) -> Any:
    """A copy, since XLA takes its memory back when the call ends; a number where it is one."""
    array = np.array(argument)
    return array if array.ndim else array.item()


@functools.cache
def _place_of_value(tree: Any) -> int:
    """Return which of the flat arguments of a write is what it writes."""
    positional, named = jax.tree.unflatten(tree, range(tree.num_leaves))
    bound = inspect.signature(gpu_callbacks._swap).bind(*positional, **named)
    return int(bound.arguments["val"])


class _Late:
    """Copies of one launch that have not arrived yet."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.issued: Counter[Any] = Counter()  # by each thread of the kernel
        self.due: defaultdict[int, list[Any]] = defaultdict(list)  # by barrier
        self.waiting: Counter[int] = Counter()  # threads at each barrier

    def keeps(self, task: Any) -> bool:
        """Take a copy to carry it out later, if it is one of those."""
        with self.lock:
            number = self.issued[task.thread]
            self.issued[task.thread] += 1
            # of two, three, four copies a step each comes both at once and late
            late = number.bit_count() % 2 == 1 and not self.waiting[id(task.barrier)]
            if late:
                self.due[id(task.barrier)].append(task)
            return late


def _late_of(memory: Any) -> _Late:
    result: _Late = memory.__dict__.setdefault("late_copies", _Late())
    return result


def _execute(memory: Any, task: Any) -> Any:
    """Carry a copy out, or keep it until somebody waits for it."""
    if late_hardware.keeps(memory, task):
        return None
    is_load = isinstance(task, gpu_callbacks.AsyncCopyGmemToSmemTask)
    if is_load and not memory.detect_races and _late_of(memory).keeps(task):
        return None
    return REPLACED[shared_memory.GPUSharedMemory, "execute_async_task"](memory, task)


def _wait(barrier: Any, *arguments: Any, **options: Any) -> Any:
    """Wait at a barrier, after the copies that arrive there."""
    memory = barrier.shared_memory
    late_hardware.deliver(memory, barrier)
    late, of = _late_of(memory), id(barrier)
    with late.lock:
        late.waiting[of] += 1
        due = late.due.pop(of, [])
    try:
        for task in due:
            REPLACED[shared_memory.GPUSharedMemory, "execute_async_task"](memory, task)
        return REPLACED[shared_memory.Barrier, "wait"](barrier, *arguments, **options)
    finally:
        with late.lock:
            late.waiting[of] -= 1


_PLACES: dict[tuple[Any, str], Any] = {
    (thread_map, "_run_jaxpr"): _run_jaxpr,
    (callback, "io_callback_impl"): _call,
    (shared_memory.GPUSharedMemory, "execute_async_task"): _execute,
    (shared_memory.Barrier, "wait"): _wait,
    **late_hardware.PLACES,
}

REPLACED = {place: getattr(*place) for place in _PLACES}
"""Jax's own functions."""


def install() -> None:
    """Change what is to come in this process."""
    for place, ours in _PLACES.items():
        setattr(*place, ours)
