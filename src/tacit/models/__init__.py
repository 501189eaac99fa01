"""What is learned: small models and the tasks (loss and metrics) that they are trained for."""

from tacit.models.linear import Convexity, convexity
from tacit.models.metrics import higher_is_better
from tacit.models.model import Model, Params, layer_names, parameter_count
from tacit.models.registry import MODELS, build, check_fit, check_options, model_options
from tacit.models.tasks import Task, mean_over_mask, task_for

__all__ = [
    "MODELS",
    "Convexity",
    "Model",
    "Params",
    "Task",
    "build",
    "check_fit",
    "check_options",
    "convexity",
    "higher_is_better",
    "layer_names",
    "mean_over_mask",
    "model_options",
    "parameter_count",
    "task_for",
]
