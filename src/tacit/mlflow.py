"""Log a run to MLflow: settings, metrics by round, epsilon by round and view, and the files that may leave.

    tacit.mlflow.log(run, "http://127.0.0.1:5000")       # or tacit run … --mlflow http://127.0.0.1:5000

    tacit.mlflow.autolog("http://127.0.0.1:5000")        # every run of tacit.run and of the estimators from here on

It needs the extra ``mlflow``. Files are those of ``share/``. Metrics are sent whatever their status: the tag
``tacit.metrics`` says what they are.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from tacit.api import LOGGERS
from tacit.engine import Run
from tacit.engine.folder import METRICS, SHARE, read_metrics
from tacit.engine.portable import optional
from tacit.errors import UserError

EXPERIMENT = "tacit"
MOST_PARAMS, MOST_METRICS, MOST_CHARACTERS = 100, 1000, 6000  # limits of MLflow for one request, and for a value


def log(run: Run | str | Path, uri: str | None = None, experiment: str = EXPERIMENT) -> str:
    """Log a run as a run of the MLflow ``experiment`` at ``uri``; returns its MLflow id.

    ``uri`` is a tracking server or a database such as ``sqlite:///mlflow.db``; None: as MLflow is configured.
    """
    mlflow = optional("mlflow", "mlflow")
    run = run if isinstance(run, Run) else Run.load(run)
    client = mlflow.MlflowClient(tracking_uri=uri)
    try:
        with redirect_stdout(sys.stderr):  # MLflow prints addresses, and a command may print JSON
            return _logged(mlflow, client, run, experiment)
    except mlflow.exceptions.MlflowException as error:
        problem = f"'{uri or 'the tracking server'}' does not accept the run ({str(error).splitlines()[0][:200]})"
        fix = "start the server, then call tacit.mlflow.log with the run folder"
        raise UserError("no-answer", "--mlflow", problem, fix) from error


def autolog(uri: str | None = None, experiment: str = EXPERIMENT, *, disable: bool = False) -> None:
    """Log every run of :func:`tacit.run` and of the estimators, until ``disable=True``.

    A server that does not answer gives a warning: the run is done, and :func:`log` can log its folder later.
    """
    LOGGERS.pop("mlflow", None)
    if not disable:
        optional("mlflow", "mlflow")
        LOGGERS["mlflow"] = partial(log, uri=uri, experiment=experiment)


def _logged(mlflow: Any, client: Any, run: Run, experiment: str) -> str:
    known = client.get_experiment_by_name(experiment)
    home = client.create_experiment(experiment) if known is None else known.experiment_id
    result, now = run.result, int(time.time() * 1000)
    tags = {
        "mlflow.runName": result["title"],
        "tacit.version": result["environment"]["tacit"],
        "tacit.status": result["status"],
        "tacit.metrics": result["evaluation"]["status"],
    }
    made: str = client.create_run(home, tags=tags).info.run_id
    params = [mlflow.entities.Param(key, str(value)[:MOST_CHARACTERS]) for key, value in _settings(run)]
    for start in range(0, len(params), MOST_PARAMS):
        client.log_batch(made, params=params[start : start + MOST_PARAMS])
    metrics = [mlflow.entities.Metric(key, value, now, step) for step, key, value in _numbers(run)]
    for start in range(0, len(metrics), MOST_METRICS):
        client.log_batch(made, metrics=metrics[start : start + MOST_METRICS])
    for file in sorted((run.path / SHARE).iterdir()):
        client.log_artifact(made, str(file))
    client.set_terminated(made, "FINISHED" if result["status"] == "finished" else "KILLED")
    return made


def _settings(run: Run) -> Iterator[tuple[str, Any]]:
    """The settings of the experiment that were given, and the noise that was solved for."""
    given = run.experiment.model_dump(by_alias=True, exclude_unset=True)
    for key, value in _flat(given):
        is_path = isinstance(value, str) and value.startswith("/")  # folders of this machine stay here
        yield key, f"…/{Path(value).name}" if is_path else value
    if run.result["noise_multiplier"] is not None and "noise_multiplier" not in given["method"]:
        yield "method.noise_multiplier", run.result["noise_multiplier"]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = "".join(c if c.isalnum() or c in "_-. /" else "_" for c in f"{prefix}{key}")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _numbers(run: Run) -> Iterator[tuple[int, str, float]]:
    """Round, name and value of all metrics and epsilons that are finite."""
    for line in read_metrics(run.path / METRICS):
        found = {
            f"epsilon.{view.replace(':', '_').replace('+', '_')}": value for view, value in line["epsilon"].items()
        }
        for name, value in {**line["metrics"], **found}.items():
            if isinstance(value, int | float) and math.isfinite(value):
                yield line["round"], name, float(value)
