"""The traffic formulas against loads and stores counted tile by tile."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.cost import KernelTiles, Tiles, asym_accumulation_steps, gemm_traffic, onchip_bytes
from c2c.errors import SettingError

FIG4 = (10240, 16384, 4096)


def spans(size: int, tile: int, first: int = 0) -> list[range]:
    """The tiles of a dimension, the last one clipped."""
    return [range(i, min(i + tile, first + size)) for i in range(first, first + size, tile)]


class Memory:
    """Counts bytes that leave host memory and HBM; the L2 keeps what it is told to keep."""

    def __init__(self, element: int) -> None:
        self.element, self.link, self.x, self.o = element, 0, 0, 0
        self.kept: set[object] = set()

    def read_w(self, rows: range, columns: range) -> None:
        self.link += len(rows) * len(columns) * self.element

    def read_x(self, rows: range, columns: range, kept_as: object) -> None:
        if kept_as not in self.kept:
            self.kept.add(kept_as)
            self.x += len(rows) * len(columns) * self.element

    def touch_o(self, rows: range, columns: range, times: int) -> None:
        self.o += times * len(rows) * len(columns) * self.element


def run_tiles(
    m: int, n: int, k: int, alpha: float, tiles: KernelTiles, sms: int, l2: int, element: int = 2
) -> Memory:
    """Walk over the tiles of Algorithm 1 as the kernel does."""
    memory = Memory(element)
    n_sym = math.floor(alpha * n)
    whole_x_stays = m * k * element <= l2
    width = math.ceil(math.sqrt(sms))

    strips = spans(n_sym, tiles.sym.tn)
    row_tiles = spans(m, tiles.sym.tm)
    for index, columns in enumerate(strips):
        for cluster in itertools.batched(row_tiles, tiles.cluster):
            for depth in spans(k, tiles.sym.tk):
                memory.read_w(depth, columns)  # one load, multicast to the cluster
                for rows in cluster:
                    group = "any" if whole_x_stays else ("sym", index // width)
                    # X elements are named one K column at a time: both paths tile K differently
                    for column in depth:
                        memory.read_x(rows, range(1), (rows.start, rows.stop, column, group))
            for rows in cluster:
                memory.touch_o(rows, columns, times=1)

    strips = spans(n - n_sym, tiles.asym.tn, first=n_sym)
    slice_stays = m * tiles.asym.kc * element <= l2
    o_stays = m * (n - n_sym) * element + m * tiles.asym.kc * element <= l2
    for number, depth in enumerate(spans(k, tiles.asym.kc)):
        for index, columns in enumerate(strips):
            memory.read_w(depth, columns)  # pinned in shared memory over the loop below
            for rows in spans(m, tiles.asym.tm):
                if whole_x_stays:
                    group: object = "any"
                else:
                    group = ("asym", 0 if slice_stays else index // sms)
                for column in depth:
                    memory.read_x(rows, range(1), (rows.start, rows.stop, column, group))
                if not o_stays:
                    memory.touch_o(rows, columns, times=1 if number == 0 else 2)
    if o_stays:
        for rows, columns in itertools.product(spans(m, tiles.asym.tm), strips):
            memory.touch_o(rows, columns, times=1)
    return memory


@st.composite
def cases(draw: st.DrawFn) -> tuple[object, ...]:
    tm = draw(st.sampled_from([8, 16, 24]))
    tk = draw(st.sampled_from([4, 8]))
    tiles = KernelTiles(
        cluster=draw(st.sampled_from([1, 2, 4])),
        sym=Tiles(tm=tm, tn=draw(st.sampled_from([4, 8])), tk=tk, kc=tk),
        # equal M tiles, because the counter names X blocks by their rows
        asym=Tiles(tm=tm, tn=draw(st.sampled_from([4, 8])), tk=tk, kc=tk * draw(st.integers(1, 4))),
    )
    m, n, k = (draw(st.integers(1, top)) for top in (70, 60, 50))
    alpha = draw(st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0, 1)))
    return m, n, k, alpha, tiles, draw(st.integers(1, 9)), draw(st.integers(0, 12_000))


@settings(deadline=None)
@given(cases())
def test_closed_forms_equal_counted_tiles(case: tuple[object, ...]) -> None:
    m, n, k, alpha, tiles, sms, l2 = case
    counted = run_tiles(m, n, k, alpha, tiles, sms, l2)  # type: ignore[arg-type]
    ours = gemm_traffic(m, n, k, alpha, tiles=tiles, sm_count=sms, l2_bytes=l2)  # type: ignore[arg-type]
    assert int(ours.link_bytes) == counted.link
    assert int(ours.x_bytes) == counted.x
    assert int(ours.o_bytes) == counted.o
    assert int(ours.hbm_bytes) == counted.x + counted.o


def full_gpu(alpha: object, **changes: object):  # type: ignore[no-untyped-def]
    options = {"tiles": KernelTiles(), "sm_count": 132, "l2_bytes": 50e6} | changes
    return gemm_traffic(*FIG4, alpha, **options)  # type: ignore[arg-type]


def test_fig4b_link_bytes_are_exact() -> None:
    traffic = full_gpu(np.array([1.0, 0.0]))
    np.testing.assert_array_equal(traffic.link_bytes, [5_368_709_120, 134_217_728])


def test_fig4b_hbm_bytes_within_ten_percent() -> None:
    sym, asym = full_gpu(np.array([1.0, 0.0])).hbm_bytes / 1e9
    assert sym == pytest.approx(1.23, rel=0.1)
    assert asym == pytest.approx(5.18, rel=0.1)


def test_alpha_trades_link_for_hbm_bytes_on_fig4() -> None:
    traffic = full_gpu(np.linspace(0, 1, 17))
    assert (np.diff(traffic.link_bytes) > 0).all()
    assert (np.diff(traffic.hbm_bytes) <= 0).all()
    assert traffic.hbm_bytes[-1] < traffic.hbm_bytes[8] < traffic.hbm_bytes[0]


widths = st.integers(1, 64).map(lambda i: 256 * i)
shapes = st.tuples(st.integers(1, 20_000), widths, widths)


@given(shapes, st.integers(1, 132), st.sampled_from([1, 2, 4, 8]))
def test_link_bytes_never_fall_with_alpha(
    shape: tuple[int, int, int], sms: int, cluster: int
) -> None:
    m, n, k = shape
    tiles = KernelTiles(cluster=cluster)
    link = gemm_traffic(
        m, n, k, np.linspace(0, 1, 33), tiles=tiles, sm_count=sms, l2_bytes=50e6
    ).link_bytes
    assert (np.diff(link) >= 0).all()
    if m <= tiles.sym.tm * cluster:
        assert (link == link[0]).all()  # W crosses once either way


@given(shapes, st.integers(1, 132))
def test_output_bytes_never_rise_with_alpha(shape: tuple[int, int, int], sms: int) -> None:
    m, n, k = shape
    o_bytes = gemm_traffic(
        m, n, k, np.linspace(0, 1, 33), tiles=KernelTiles(), sm_count=sms, l2_bytes=50e6
    ).o_bytes
    assert (np.diff(o_bytes) <= 0).all()


LAYERS = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (57344, 8192), (8192, 28672)]


@given(st.integers(1, 10_240), st.sampled_from(LAYERS), st.sampled_from([16, 28, 56, 132]))
def test_hbm_bytes_never_rise_with_alpha_when_the_l2_keeps_nothing(
    m: int, layer: tuple[int, int], sms: int
) -> None:
    n, k = layer
    # quarters: a finer step can save less O traffic than the group of columns it opens reads of X
    hbm = gemm_traffic(
        m, n, k, np.linspace(0, 1, 5), tiles=KernelTiles(), sm_count=sms, l2_bytes=0
    ).hbm_bytes
    assert (np.diff(hbm) <= 0).all()


def test_output_that_fits_in_l2_is_written_once_by_asym_gemm() -> None:
    small = gemm_traffic(64, 4096, 4096, 0.0, tiles=KernelTiles(), sm_count=132, l2_bytes=50e6)
    assert small.o_bytes == 2 * 64 * 4096
    assert small.x_bytes == 2 * 64 * 4096


@given(shapes)
def test_pure_dataflows_are_what_alpha_0_and_1_give(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    traffic = gemm_traffic(
        m, n, k, np.array([0.0, 1.0]), tiles=KernelTiles(), sm_count=132, l2_bytes=50e6
    )
    asym, sym = 0, 1
    assert traffic.link_bytes[asym] == 2 * k * n
    assert traffic.sym_mma_flops[asym] == traffic.sym_tile_flops[asym] == 0
    assert traffic.link_bytes[sym] == 2 * k * n * math.ceil(m / 256)
    assert traffic.asym_mma_flops[sym] == traffic.asym_tile_flops[sym] == 0
    assert traffic.reduction_bytes[sym] == traffic.asym_steps[sym] == 0
    np.testing.assert_array_equal(traffic.flops, 2.0 * m * n * k)


def test_multicast_divides_link_bytes_and_wastes_work_below_a_cluster() -> None:
    links = [float(full_gpu(1.0, tiles=KernelTiles(cluster=c)).link_bytes) for c in (1, 2, 4, 8)]
    assert links == [5_368_709_120 / c for c in (1, 2, 4, 8)]
    tiles = KernelTiles(cluster=8)
    short = gemm_traffic(512, 4096, 4096, 1.0, tiles=tiles, sm_count=132, l2_bytes=50e6)
    assert short.sym_mma_flops == 4 * short.flops  # 2 of 8 CTAs have rows


def test_groups_multiply_and_empty_gemms_move_nothing() -> None:
    options = {"tiles": KernelTiles(), "sm_count": 16, "l2_bytes": 7e6}
    one = gemm_traffic(100, 1536, 2048, 0.3, **options)  # type: ignore[arg-type]
    six = gemm_traffic(100, 1536, 2048, 0.3, groups=6.0, **options)  # type: ignore[arg-type]
    empty = gemm_traffic(0, 1536, 2048, 0.3, **options)  # type: ignore[arg-type]
    for name in ("link_bytes", "hbm_bytes", "flops", "sym_mma_flops", "reduction_bytes"):
        assert getattr(six, name) == 6 * getattr(one, name)
        assert getattr(empty, name) == 0


def test_larger_m_tiles_reduce_less_often_and_use_more_chip_memory() -> None:
    sizes = [Tiles(tm=tm, tn=128, kc=512, stages=2) for tm in (64, 128, 256)]
    steps = [int(asym_accumulation_steps(*FIG4, t)) for t in sizes]
    memory = [sum(onchip_bytes(t, weight_stationary=True)) for t in sizes]
    assert steps == [160 * 128 * 8, 80 * 128 * 8, 40 * 128 * 8]
    assert memory == sorted(memory)
    assert len(set(memory)) == 3


def test_default_tiles_fill_shared_memory_as_compiled() -> None:
    tiles = KernelTiles()
    # the ahead-of-time compiled kernel of both paths reports 229376 bytes, the limit is 232448
    assert onchip_bytes(tiles.sym, weight_stationary=False)[0] == 229_376
    assert onchip_bytes(tiles.asym, weight_stationary=True)[0] == 229_376


@pytest.mark.parametrize("change", [{"tm": 0}, {"kc": 100}, {"stages": -1}, {"tn": 1.5}])
def test_impossible_tiles_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(SettingError, match="tiles"):
        Tiles(**({"tm": 256, "tn": 128} | change))
