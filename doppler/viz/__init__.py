"""Pictures of schedules and of training; matplotlib is imported when one is drawn."""

from doppler.viz.gantt import plot_gantt
from doppler.viz.learning_curve import plot_learning_curve, read_metrics

__all__ = ["plot_gantt", "plot_learning_curve", "read_metrics"]
