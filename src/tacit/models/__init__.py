"""Small models, and the tasks (loss and metrics) that they are trained for."""

from tacit.models.model import (
    MODELS,
    Convexity,
    Model,
    ModelKind,
    Params,
    build,
    check_fit,
    check_options,
    convexity,
    is_built_in,
    parameter_count,
    shapes,
)
from tacit.models.tasks import Task, higher_is_better, mean_over_mask, metric_names, task_for

__all__ = [
    "MODELS",
    "Convexity",
    "Model",
    "ModelKind",
    "Params",
    "Task",
    "build",
    "check_fit",
    "check_options",
    "convexity",
    "higher_is_better",
    "is_built_in",
    "mean_over_mask",
    "metric_names",
    "parameter_count",
    "shapes",
    "task_for",
]
