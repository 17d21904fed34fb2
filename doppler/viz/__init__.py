"""Pictures of schedules and of training, trace files; matplotlib is imported on first use."""

from doppler.viz.bars import plot_bars
from doppler.viz.gantt import plot_gantt
from doppler.viz.learning_curve import plot_learning_curve, read_metrics
from doppler.viz.overlay import plot_overlay
from doppler.viz.perfetto import write_trace
from doppler.viz.scatter import ScatterPanel, plot_scatter
from doppler.viz.search_curve import plot_search_curve
from doppler.viz.training_curves import CurvePanel, TrainingCurve, plot_training_curves

__all__ = [
    "CurvePanel",
    "ScatterPanel",
    "TrainingCurve",
    "plot_bars",
    "plot_gantt",
    "plot_learning_curve",
    "plot_overlay",
    "plot_scatter",
    "plot_search_curve",
    "plot_training_curves",
    "read_metrics",
    "write_trace",
]
