"""The calibration meter as a torchmetrics metric, for collections, `forward` and several processes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from densecal.metrics.calibration import CalibrationMeter
from densecal.metrics.calibration_result import CalibrationResult
from densecal.runtime.extras import require

require("densecal.integrations.torchmetrics", "torchmetrics")
from torchmetrics import Metric  # noqa: E402

FIGURES = tuple(field.name for field in fields(CalibrationResult) if field.metadata.get("scalar", True))
"""The figures that can be computed, see ``CalibrationResult``."""
GROWING = ("rows", "raw_values", "raw_outcomes")
"""Parts of a meter's state that have one row per image or one column per pixel."""


class CalibrationMetric(Metric):
    """Measures what ``CalibrationMeter`` measures, in memory that does not grow with pixels.

    The states are the integer tables of the meter, so that several processes are combined exactly.

    Args:
        figure: One of ``FIGURES``, for a scalar; unless given, the result is a dictionary of all figures.
        bins: Bins of the calibration errors; this and the next four are those of ``CalibrationMeter``.
        num_classes: 1 for one foreground probability, K for K channels.
        multilabel: The K channels are independent sigmoids.
        ignore_index: Mask value of void pixels.
        boundary: Measure the boundary bands too.
        logits: Updates are given logits instead of probabilities.
        **options: Options of ``torchmetrics.Metric``.

    Examples:
        >>> metric = CalibrationMetric("ece_ew")
        >>> metric.update(torch.tensor([[0.9, 0.8], [0.2, 0.6]]), torch.tensor([[1, 1], [0, 0]]))
        >>> round(metric.compute().item(), 3)
        0.275
    """

    full_state_update = False
    is_differentiable = False

    def __init__(
        self,
        figure: str | None = None,
        *,
        bins: int = 10,
        num_classes: int = 1,
        multilabel: bool = False,
        ignore_index: int | None = None,
        boundary: bool = True,
        logits: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if figure is not None and figure not in FIGURES:
            raise ValueError(f"figure: found {figure!r}; expected one of {', '.join(FIGURES)}")
        self.figure = figure
        self.logits = logits
        self._settings = (bins, num_classes, multilabel, ignore_index, boundary)
        tables, self._no_rows = _empty_state(bins, num_classes, multilabel)
        for name, table in tables.items():
            self.add_state(name, table, dist_reduce_fx="sum")
        for name in self._no_rows:
            self.add_state(name, [], dist_reduce_fx="cat")
        # A collection merges metrics whose states are equal after a batch, so the settings are part of the state.
        kind = [-1 if setting is None else int(setting) for setting in (*self._settings, logits)]
        self.add_state("kind", torch.tensor(kind), dist_reduce_fx="max")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch; shapes as for ``CalibrationMeter.update``."""
        meter = self.meter()
        if self.logits:
            meter.update(logits=preds, masks=target)
        else:
            meter.update(preds, target)
        self._keep(meter)

    def compute(self) -> Any:
        """Return the figure as a tensor, or all of them by name; NaN where one is not defined."""
        result = self.meter().compute()
        if self.figure is not None:
            return self._tensor(getattr(result, self.figure))
        return {name: self._tensor(getattr(result, name)) for name in FIGURES}

    def meter(self) -> CalibrationMeter:
        """Return a meter with everything counted so far; inside ``sync_context``, by all processes."""
        state: dict[str, Any] = {name: getattr(self, name) for name in self._defaults if name != "kind"}
        for name, empty in self._no_rows.items():
            # a list of parts before the processes are combined, one tensor after
            parts = state[name] if isinstance(state[name], list) else [state[name]]
            state[name] = _transpose(name, torch.cat([empty.to(self.device), *parts]))
        state["raw_pixels"] = state["raw_values"].shape[1]
        # a meter has fine tables only once it no longer keeps the pixels themselves
        if not bool(state["fine"].any()):
            state = {name: value for name, value in state.items() if not name.startswith("fine")}
        counted, meter = (CalibrationMeter(*self._settings) for _ in range(2))
        counted.load_state_dict(state)
        meter.merge(counted)
        return meter

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Combine all processes; one that has counted nothing sends an empty tensor of the right width and type."""
        for name, empty in self._no_rows.items():
            if len(getattr(self, name)) == 0:
                setattr(self, name, [empty.to(self.device)])
        super().sync(*args, **kwargs)

    def _reduce_states(self, incoming_state: dict[str, Any]) -> None:
        """Join two states and summarise many pixels, because ``forward`` would otherwise keep those of every batch."""
        super()._reduce_states(incoming_state)
        self._keep(self.meter())

    def _keep(self, meter: CalibrationMeter) -> None:
        state = _tensors(meter.state_dict())
        for name in self._no_rows:
            setattr(self, name, [_transpose(name, state[name]).to(self.device)] if name in state else [])
        for name in self._defaults.keys() & state.keys() - self._no_rows.keys():
            setattr(self, name, state[name].to(self.device))

    def _tensor(self, figure: float) -> Tensor:
        return torch.tensor(figure, dtype=torch.float64, device=self.device)


def _empty_state(bins: int, num_classes: int, multilabel: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return zeros shaped like a meter's tables, and empty growing tables; a meter of one pixel shows the shapes."""
    meter = CalibrationMeter(bins, num_classes, multilabel)
    pixel = torch.ones(1) if num_classes == 1 else torch.full((1, num_classes), 1 / num_classes)
    meter.update(pixel, torch.zeros_like(pixel if multilabel else torch.zeros(1), dtype=torch.int64))
    state = _tensors(meter.state_dict())
    rows = {name: _transpose(name, table)[:0] for name, table in state.items() if name in GROWING}
    meter.sketch.bin_pixels()
    meter.sketch.carry()
    state = _tensors(meter.state_dict())
    tables = {name: torch.zeros_like(state[name]) for name in state.keys() - {*GROWING}}
    return dict(sorted(tables.items())), rows


def _tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the arrays of a meter's state as tensors."""
    return {name: torch.from_numpy(value) for name, value in state.items() if name != "raw_pixels"}


def _transpose(name: str, table: Tensor) -> Tensor:
    """Convert between the meter's (channels, pixels) and the (pixels, channels) of a state that is concatenated."""
    if name == "rows":
        return table
    # NCCL does not support int16
    other = {torch.int16: torch.int32, torch.int32: torch.int16}.get(table.dtype, table.dtype)
    return table.T.to(other)
