"""What several tests of pictures need."""

from __future__ import annotations

from pathlib import Path

import pytest

from doppler.viz import (
    bars,
    gantt,
    learning_curve,
    overlay,
    scatter,
    search_curve,
    training_curves,
)
from doppler.viz.figure import save_figure


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list:
    """Keeps the figures that are saved, so that their content can be looked at."""
    figures: list = []

    def keep(figure: object, path: Path) -> Path:
        figures.append(figure)
        return save_figure(figure, path)

    pictures = (bars, gantt, learning_curve, overlay, scatter, search_curve, training_curves)
    for module in pictures:
        monkeypatch.setattr(module, "save_figure", keep)
    return figures
