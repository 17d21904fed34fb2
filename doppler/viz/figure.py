"""What all pictures share: a file-only figure, and a time unit that suits the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from doppler.errors import ConfigurationError
from doppler.files import write_atomically

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def new_figure(width: float, height: float) -> Any:
    """Returns an empty matplotlib figure that is only ever written to a file.

    A bare `Figure` rather than `pyplot.figure`, so that no global state is touched, no display is
    needed and figures are freed with their last reference.

    Args:
        width, height: [inch]

    Raises:
        ConfigurationError: if matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("pictures need matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: str | Path) -> Path:
    """Writes a figure under a temporary name and renames it; returns the path.

    Raises:
        ConfigurationError: if the suffix is not one that matplotlib writes.
        DopplerError: if the folder cannot be written to.
    """
    path = Path(path)
    _check_format(figure, path)
    from matplotlib.text import Text

    for text in figure.findobj(Text):  # names of graphs and devices are no formulas
        text.set_parse_math(False)
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=140))
    return path


def check_picture(path: str | Path) -> None:
    """Raises `ConfigurationError` unless pictures of that name can be made, without making one."""
    _check_format(new_figure(1.0, 1.0), Path(path))


def _check_format(figure: Any, path: Path) -> None:
    known = figure.canvas.get_supported_filetypes()
    if path.suffix[1:] not in known:
        raise ConfigurationError(f"{path}: no picture format; known: {', '.join(sorted(known))}")


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which `seconds` reads as a number of at least 1: (its seconds, its name)."""
    for scale, name in UNITS:
        if seconds >= scale:
            return scale, name
    return UNITS[-1] if seconds > 0 else UNITS[0]


def format_seconds(seconds: float) -> str:
    """Four significant digits in a unit that suits, for example "84.63 s" or "1.230 ms"."""
    scale, name = time_unit(seconds)
    return f"{seconds / scale:#.4g}".rstrip(".") + f" {name}"
