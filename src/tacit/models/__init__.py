"""Small models, and the tasks (loss and metrics) that they are trained for."""

from tacit.models.linear import Convexity, convexity
from tacit.models.metrics import higher_is_better
from tacit.models.model import Model, Params, layer_names, parameter_count
from tacit.models.registry import MODELS, ModelKind, build, check_fit, check_options, is_built_in, model_options
from tacit.models.tasks import Task, mean_over_mask, task_for

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
    "layer_names",
    "mean_over_mask",
    "model_options",
    "parameter_count",
    "task_for",
]
