"""`send`, `poll` and `receive` for Hopper (Mosaic GPU)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from pallas_kernels.attention import online, sm90_decode
from pallas_kernels.attention.config import DecodeConfig, check_decode
from pallas_kernels.attention.cta import Buffers
from pallas_kernels.attention.specs import GROUP_ROWS, array_type
from pallas_kernels.integer_math import Int, dealt, div, rem, round_up
from pallas_kernels.mosaic import Ref, apart, persistent, plgpu
from pallas_kernels.woven.config import SendConfig, check_poll, send_bytes
from pallas_kernels.woven.exchange import Exchange, Looked, Polling, Polls, Sends
from pallas_kernels.woven.signals import Accesses, Instructions, Signals
from pallas_kernels.woven.slot import Status

WARPGROUP = 128  # threads, which fill shared memory only if each has an element

Interpret = mosaic_gpu.InterpretGPUParams | None


# send      rows of Q, K, V -> shared memory -> the lane; then the number of the task
# poll      number of the task -> own K and V row to the pool -> attention -> result; own number
# receive   own number, looked for at most so often -> result -> device memory
#
# A polling or receiving CTA has one split, sequence and KV head and its own word. Shared arrays are
# written in place: XLA regards them as read-only operands and makes no copy.
def build_send(
    exchange: Exchange, config: SendConfig, tokens: int, *, interpret: Interpret = None
) -> Callable[..., Any]:
    """Return a kernel of state, rows, q, k, v, version, lanes, asked and task."""
    send_bytes(exchange, config)
    slot, stages, ctas = exchange.slot, config.stages, config.cluster
    signals = _signals(interpret)
    widths = [heads * slot.head_dim for heads in (slot.heads, slot.kv_heads, slot.kv_heads)]
    places = [sum(widths[:part]) for part in range(3)]

    def body(
        state: Ref, many: Ref, q: Ref, k: Ref, v: Ref, version: Ref, q_lane: Ref, k_lane: Ref,
        v_lane: Ref, asked: Ref, task: Ref, state_out: Ref, ring: Ref, full: Ref, done: Ref,
    ) -> None:  # fmt: skip
        rank = lax.axis_index("rank") if ctas > 1 else jnp.int32(0)
        sent, lane, collected = state[Sends.SENT], state[Sends.LANE], state[Sends.COLLECTED]
        goes = (sent - collected >= 0) & (sent - collected < slot.outstanding)
        rows = jnp.clip(many[0], 1, tokens)
        items = jnp.where(goes, dealt(rows, ctas, rank), 0)

        def parts(step: Int) -> list[tuple[Ref, Ref, Ref]]:
            row, stage = rank + step * ctas, rem(step, stages)
            copies = zip((q, k, v), (q_lane, k_lane, v_lane), places, widths, strict=True)
            return [
                (
                    source.at[row],
                    ring.at[stage, pl.ds(place, width)],
                    into.at[lane * slot.rows + row],
                )
                for source, into, place, width in copies
            ]

        def load(step: Int) -> None:
            for source, slot, _ in parts(step):
                plgpu.copy_gmem_to_smem(
                    source, slot, full.at[rem(step, stages)],
                    oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS,
                )  # fmt: skip

        @pl.loop(0, jnp.minimum(items, stages - 1))
        def _begin(step: Int) -> None:
            load(step)

        @pl.loop(0, items)
        def _pass_on(step: Int) -> None:
            @pl.when(step + stages - 1 < items)
            def _ahead() -> None:
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                load(step + stages - 1)

            plgpu.barrier_wait(full.at[rem(step, stages)])
            plgpu.commit_smem()
            for _, slot, target in parts(step):
                plgpu.copy_smem_to_gmem(slot, target)

        plgpu.wait_smem_to_gmem(0)
        if ctas > 1:  # a barrier alone orders no stores to global memory between CTAs
            signals.between(order=True)
            plgpu.barrier_arrive(done)
            plgpu.barrier_wait(done)

        @pl.when(rank == 0)
        def _tell() -> None:
            state_out[Sends.SENT] = jnp.where(goes, sent + 1, sent)
            state_out[Sends.LANE] = jnp.where(goes, rem(lane + 1, slot.outstanding), lane)
            state_out[Sends.COLLECTED] = collected
            state_out[Sends.COLLECT_LANE] = state[Sends.COLLECT_LANE]
            state_out[Sends.WENT] = goes.astype(jnp.int32)

            @pl.when(goes)
            def _task() -> None:
                notes = [
                    (asked.at[pl.ds(2 * lane, 1)], rows),
                    (asked.at[pl.ds(2 * lane + 1, 1)], version[0]),
                ]
                signals.tell(notes, (task, sent + 1))

    return persistent(
        body,
        out=((5,), "int32"),
        clusters=1,
        cluster=ctas,
        warpgroups=0,
        scratch=[
            plgpu.SMEM((stages, sum(widths)), jnp.dtype(slot.dtype)),
            plgpu.Barrier(num_arrivals=3, num_barriers=stages),
            plgpu.ClusterBarrier(collective_axes=("rank",)) if ctas > 1 else plgpu.Barrier(),
        ],
        interpret=interpret,
    )


def build_poll(
    polling: Polling, config: DecodeConfig, *, interpret: Interpret = None
) -> Callable[..., Any]:
    """Return a kernel of one bounded look and its task."""
    spec, exchange = polling.attention, polling.exchange
    check_decode(spec, config)
    check_poll(polling, config)
    signals, lanes = _signals(interpret), exchange.slot.outstanding

    def body(
        task: Ref, version: Ref, lengths: Ref, table: Ref, asked: Ref, q: Ref, k_new: Ref,
        v_new: Ref, out: Ref, lse: Ref, status: Ref, done: Ref, windows: Ref, state: Ref, k: Ref,
        v: Ref, state_out: Ref, scratch: dict[str, Ref], new_s: Ref, handed: Ref, told: Ref,
        new_full: Ref,
    ) -> None:  # fmt: skip
        warpgroup, head = lax.axis_index("warpgroup"), lax.axis_index("head")
        row, split = lax.axis_index("row"), lax.axis_index("split")
        number = (split * spec.batch + row) * spec.kv_heads + head

        @pl.when(warpgroup == config.warpgroups)
        def _look() -> None:
            signals.look(task, handed)
            plgpu.barrier_arrive(told)

        plgpu.barrier_wait(told)
        answered, lane, layer = (
            state[number, Polls.ANSWERED],
            state[number, Polls.LANE],
            state[number, Polls.LAYER],
        )
        new = handed[0] - answered  # modulo 2^32
        took = (new > 0) & (new <= lanes)

        @pl.when(warpgroup == 0)
        def _next() -> None:
            state_out[number, Polls.ANSWERED] = jnp.where(took, answered + 1, answered)
            state_out[number, Polls.LANE] = jnp.where(took, rem(lane + 1, lanes), lane)
            state_out[number, Polls.LAYER] = jnp.where(took, rem(layer + 1, polling.layers), layer)
            other = jnp.where(new == 0, Looked.NOTHING, Looked.JUMPED)
            state_out[number, Polls.LOOKED] = jnp.where(took, Looked.TOOK, other)

        @pl.when(took)
        def _task() -> None:
            length, position = lengths[row], lengths[row] - 1
            behind = layer * polling.stride
            page = table[row, div(jnp.maximum(position, 0), spec.page)]
            lacks = (length > 0) & ((page < 0) | (page + behind >= polling.pages))
            code = jnp.where(lacks, int(Status.NO_BLOCKS), int(Status.DONE))
            code = jnp.where(asked[2 * lane + 1] != version[0], int(Status.OTHER_TABLE), code)
            code = jnp.where(row < asked[2 * lane], code, int(Status.DONE))
            attends = (row < asked[2 * lane]) & (code == int(Status.DONE))
            length = jnp.where(attends, length, 0)
            window = windows[layer]
            first, blocks, end = sm90_decode.share_of(config, split, length, length - 1, window)
            cta = _Cta(
                spec=spec, config=config, row=row, head=head, place=lane * exchange.ctas + number,
                position=length - 1, length=length, window=window, first=first, blocks=blocks,
                tables=table, q=q, k=k, v=v, out=out, lse=lse, at=Buffers(**scratch),
                payload=(lane * spec.batch + row) * spec.kv_heads + head, behind=behind,
            )  # fmt: skip

            def loads() -> None:
                signals.between()

                @pl.when((blocks > 0) & (first + blocks == end))
                def _append() -> None:
                    _store_row(cta, k_new, v_new, new_s, new_full, signals)

                sm90_decode.load(cta)

            def computes() -> None:
                @pl.when(attends)
                def _attend() -> None:
                    signals.between()
                    value, log_sum = sm90_decode.attend(cta)
                    sm90_decode.store_part(cta, value, log_sum if exchange.splits > 1 else None)

                notes = [(status.at[pl.ds(cta.place, 1)], code)]
                signals.tell(notes, (done.at[pl.ds(number, 1)], answered + 1))

            apart(warpgroup, config, loads, computes)

    dtype = jnp.dtype(spec.dtype)
    kernel: Callable[..., Any] = plgpu.kernel(
        body,
        out_type=array_type((exchange.ctas, 4), jnp.int32),
        grid=(config.splits, spec.batch, spec.kv_heads),
        grid_names=("split", "row", "head"),
        num_threads=config.warpgroups + 1,
        thread_name="warpgroup",
        scratch_types=[
            sm90_decode.buffers(spec, config, interpreted=interpret is not None),
            plgpu.SMEM((2, spec.dim), dtype),
            plgpu.SMEM((1,), jnp.int32),
            plgpu.Barrier(),
            plgpu.Barrier(num_arrivals=2),
        ],
        **online.options(interpret),
    )
    return kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cta(sm90_decode.Cta):
    payload: Int  # where its group's queries and its K and V are
    behind: Int  # pages between the first layer's and this one's

    def page(self, number: Int) -> Int:
        return self.tables[self.row, number] + self.behind

    @property
    def own(self) -> Ref:
        return self.q.at[self.payload, self.all_rows]


def _store_row(cta: _Cta, k_new: Ref, v_new: Ref, buffer: Ref, full: Ref, signals: Signals) -> None:
    page = cta.page(div(cta.position, cta.spec.page))
    inside = rem(cta.position, cta.spec.page)
    for part, source in enumerate((k_new, v_new)):
        plgpu.copy_gmem_to_smem(
            source.at[cta.payload], buffer.at[part], full,
            oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS,
        )  # fmt: skip
    plgpu.barrier_wait(full)
    plgpu.commit_smem()
    for part, target in enumerate((cta.k, cta.v)):
        plgpu.copy_smem_to_gmem(buffer.at[part], target.at[page, inside, cta.head])
    plgpu.wait_smem_to_gmem(0)
    signals.between()


def build_receive(exchange: Exchange, *, interpret: Interpret = None) -> Callable[..., Any]:
    """Return `kernel(state, rows, looks, out, lse, status, done) -> (out, lse, status, state)`."""
    ctas, signals = exchange.ctas, _signals(interpret)
    slot, parts = exchange.slot, exchange.splits > 1
    width, dtype = exchange.group * slot.head_dim, jnp.dtype(exchange.out_dtype)

    def body(
        state: Ref, rows: Ref, looks: Ref, out: Ref, lse: Ref, status: Ref, done: Ref,
        out_got: Ref, lse_got: Ref, status_got: Ref, state_out: Ref, kept: Ref, sums: Ref,
        handed: Ref, full: Ref,
    ) -> None:  # fmt: skip
        row, head = lax.axis_index("row"), lax.axis_index("head")
        number = (lax.axis_index("split") * slot.rows + row) * slot.kv_heads + head
        sequence, lane, most = state[Sends.COLLECTED] + 1, state[Sends.COLLECT_LANE], looks[0]
        is_active, place = row < rows[0], lane * ctas + number

        @pl.when(number == 0)
        def _next() -> None:
            for field in (Sends.SENT, Sends.LANE, Sends.WENT):
                state_out[field] = state[field]
            state_out[Sends.COLLECTED] = sequence
            state_out[Sends.COLLECT_LANE] = rem(lane + 1, slot.outstanding)

        def there(word: Int) -> Any:
            ahead = word - sequence  # modulo 2^32
            return (ahead >= 0) & (ahead < slot.outstanding)

        def look(carry: tuple[Int, Int]) -> tuple[Int, Int]:
            signals.look(done.at[pl.ds(number, 1)], handed)
            return carry[0] + 1, handed[0]

        _, word = lax.while_loop(
            lambda carry: is_active & (carry[0] < most) & ~there(carry[1]),
            look,
            (jnp.int32(0), sequence - 1),
        )
        late = jnp.where(is_active, int(Status.TIME_OUT), int(Status.DONE))
        code = lax.cond(there(word), lambda: status[place], lambda: late)
        is_done = there(word) & (code == int(Status.DONE))
        values = kept.at[pl.ds(0, width)]
        copies = [(out, values, out_got), (lse, sums, lse_got)][: 1 + parts]

        @pl.when(is_done)
        def _take() -> None:
            signals.between()
            for source, tile, _ in copies:
                plgpu.copy_gmem_to_smem(
                    source.at[place], tile, full, oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS
                )
            plgpu.barrier_wait(full)

        @pl.when(~is_done)
        def _nothing() -> None:
            kept[...] = jnp.zeros(kept.shape, kept.dtype)

        plgpu.commit_smem()
        for _, tile, target in copies:
            plgpu.copy_smem_to_gmem(tile, target.at[number])
        status_got[number] = code
        plgpu.wait_smem_to_gmem(0)

    kernel: Callable[..., Any] = plgpu.kernel(
        body,
        out_type=(
            array_type((ctas, width), dtype),
            array_type((ctas, GROUP_ROWS), jnp.float32),
            array_type((ctas,), jnp.int32),
            array_type((5,), jnp.int32),
        ),
        grid=(exchange.splits, slot.rows, slot.kv_heads),
        grid_names=("split", "row", "head"),
        num_threads=1,
        thread_name="warpgroup",
        scratch_types=[
            plgpu.SMEM((round_up(width, WARPGROUP),), dtype),
            plgpu.SMEM((GROUP_ROWS,), jnp.float32),
            plgpu.SMEM((1,), jnp.int32),
            plgpu.Barrier(num_arrivals=1 + parts),
        ],
        **({} if interpret is None else {"interpret": interpret}),
    )
    return kernel


def _signals(interpret: Interpret) -> Signals:
    return Instructions() if interpret is None else Accesses()
