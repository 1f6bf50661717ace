"""Settings of the layout of hot and cold models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from c2c.errors import SettingError
from c2c.ranges import Count, FromZero, In, Index, OneOf, Share, SomeShare, check_fields
from c2c.systems.weaver.splitting import Limits, ThresholdOf

__all__ = ["WAYS", "Weaving"]

WAYS: Final = ("dedicated", "spatial", "temporal", "woven")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weaving:
    """Settings of `system.layout`: two models over two GPUs.

    Attributes:
      way: woven, dedicated, temporal or spatial.
      hot: name of the hot model; None: the catalog's first.
      ratio: share of the hot sequences that are away.
      receivers: GPUs of cold models.
      colds: cold models that take turns on them; 0: one each.
      cut: cut of the cold model's operators: none, printed, guarded (Algorithm 1) or best (ours).
      threshold: longest stall of Algorithm 1, as a share of the hot step.
      threshold_of: stall that it bounds: operator, layer or iteration.
      weight: of a second of the cold model's step, for the best cut.
      rows: rows of the hot step that the cut is made for.
      cold_rows: rows of the cold step.
      context: tokens a sequence for cut and stalls.
      poll_s: seconds of a poll that finds nothing.
      split_s: seconds that a split adds to an operator.
      ahead_s: seconds that the CPU issues ahead; None: the GPU controls tasks.
      prompt_devices: devices for each model's prompts; 0: where it decodes; None: prompts take no
        time.
      kv_share: share of a GPU's memory for weights, keys, values and `reserve_bytes`.
      reserve_bytes: bytes of each GPU for other uses.
      cold_share: share of the KV room kept for the cold model.
      host_s: host seconds a step, beside the calibration's.
      collective_s: seconds of an all-reduce beside its bytes, with way=temporal or spatial; None:
        the paper's pair of A100.
      sm_share: share of the hot model's SMs, with way=spatial.
    """

    way: Annotated[str, OneOf(*WAYS)] = "woven"
    hot: str | None = None
    ratio: Share = 0.45
    receivers: Count = 1
    colds: Index = 0
    cut: Annotated[str, OneOf("none", "printed", "guarded", "best")] = "guarded"
    threshold: FromZero = 0.05
    threshold_of: Annotated[str, OneOf("operator", "layer", "iteration")] = "iteration"
    weight: FromZero = 0.1
    rows: Count = 118
    cold_rows: Count = 4
    context: Count = 1093
    poll_s: FromZero = 2e-6
    split_s: FromZero = 3e-6
    ahead_s: FromZero | None = None
    prompt_devices: int | None = 0
    kv_share: SomeShare = 0.9
    reserve_bytes: FromZero = 1e9
    cold_share: Share = 0.1
    host_s: FromZero = 0.0
    collective_s: FromZero | None = None
    sm_share: Annotated[float, In("(0, 1)", "a share")] = 0.5

    def __post_init__(self) -> None:
        where = "system.layout"
        check_fields(self, where)
        apart = self.way in ("dedicated", "woven")
        if self.receivers > 1 and not apart:
            raise SettingError(f"{where}.receivers", self.receivers, f"1 with way={self.way}")
        least = self.receivers if apart else 1
        if self.colds and (self.colds < least or not apart):
            allowed = f"0, or at least {least}, the receivers" if apart else "0"
            raise SettingError(f"{where}.colds", self.colds, allowed)
        if self.colds > self.receivers and self.prompt_devices:
            allowed = "0 or null where cold models take turns"
            raise SettingError(f"{where}.prompt_devices", self.prompt_devices, allowed)
        most = 8 if apart else 0
        if self.prompt_devices is not None and not 0 <= self.prompt_devices <= most:
            allowed = "0 to 8, or null" if apart else f"0 or null with way={self.way}"
            raise SettingError(f"{where}.prompt_devices", self.prompt_devices, allowed)

    @property
    def models(self) -> int:
        """Number of models a node, the hot one included."""
        return 1 + (self.colds or self.receivers)

    @property
    def of(self) -> ThresholdOf:
        """`threshold_of` in the type of `Threshold.of`."""
        kind: Any = self.threshold_of
        return kind  # type: ignore[no-any-return]

    @property
    def limits(self) -> Limits:
        """Limits of a cut."""
        return Limits(split_s=self.split_s, poll_s=self.poll_s)
