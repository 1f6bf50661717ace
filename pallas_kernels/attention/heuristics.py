"""Choice of configurations by sizes, not measured on a device yet."""

from __future__ import annotations

from pallas_kernels.attention.config import DecodeConfig, PrefillConfig
from pallas_kernels.attention.specs import Decode, Prefill
from pallas_kernels.counting import ceil_div

_BLOCKS_PER_SPLIT = 4  # a shorter share costs more to start and merge than it saves
_MOST_SPLITS = 64
_BUSY = 0.9  # share of SMs in use over all waves from which more splits bring little


def choose_prefill(spec: Prefill) -> PrefillConfig:
    """Return tiles that fit: half the head size leaves room for twice the stages."""
    return PrefillConfig(stages=2 if spec.dim == 128 else 4)


def choose_decode(spec: Decode, *, sm_count: int) -> DecodeConfig:
    """Return tiles and the number of CTAs that share one sequence and KV head.

    A CTA fills an SM (`decode_shared_bytes`), so the launch runs in waves of `sm_count`. The
    smallest number of splits that keeps the SMs busy on average is taken, counted for sequences
    that fill their block table.
    """
    config = DecodeConfig(stages=4 if spec.dim == 128 else 6)
    blocks = ceil_div(spec.table * spec.page, config.block_kv)
    splits = choose_splits(spec.batch * spec.kv_heads, blocks, sm_count)
    return DecodeConfig(stages=config.stages, splits=splits)


def choose_splits(work: int, blocks: int, sm_count: int) -> int:
    """Return the number of splits of the keys of each of `work` items.

    >>> choose_splits(8, 512, 132), choose_splits(512, 512, 132), choose_splits(8, 4, 132)
    (15, 1, 1)
    """
    most = max(1, min(blocks // _BLOCKS_PER_SPLIT, _MOST_SPLITS))

    def busy(splits: int) -> float:
        ctas = work * splits
        waves = -(-ctas // sm_count)
        return ctas / (waves * sm_count)

    return max(range(1, most + 1), key=lambda splits: (min(busy(splits), _BUSY), -splits))
