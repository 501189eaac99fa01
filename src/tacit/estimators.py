"""scikit-learn estimators: :class:`TacitClassifier`, :class:`TacitRegressor`, :class:`TacitSurvival`.

    model = TacitClassifier(epsilon=4.0).fit(X, y, subjects=patient, silos=hospital)
    model.predict_proba(X_new)
    model.guarantees_            # who is protected from whom, at which epsilon

``fit`` plans an experiment and runs it in this process (:func:`tacit.run`). They need the extra ``sklearn``.

**What is public.** Names and number of the features, all parameters, and the numbers of subjects, silos and classes. A
number that ``settings`` does not give is counted in the table, and each guarantee says so (``plan_.from_this_table``).

**Scale of the features.** Nothing is computed from ``X`` unless it is accounted for. There are three ways:

- Scale ``X`` by public constants before ``fit``, so that most values are between -3 and 3.
- Declare public constants: ``columns={"age": {"mean": 50, "scale": 20}}``, or one entry for all features.
- ``standardize="private"``, with public bounds (``low``, ``high``) or without: means and deviations are computed with
  noise, as a part of epsilon.

A ``StandardScaler`` before a Tacit estimator computes its constants from private records without noise. No guarantee
covers that.

**Each fit is a release.** The epsilon of cross-validation or of a search is that of all its fits together. Set
``settings={"privacy": {"budget_file": …}}`` to add fits up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from tacit import api
from tacit.data.sources import row_keys
from tacit.data.table import from_frame
from tacit.engine import Silence
from tacit.engine.folder import ENCODER, METRICS, MODEL, PLAN, RESULT
from tacit.errors import UserError
from tacit.models.tasks import c_index

# columns of the table beside the features
LABEL, SUBJECT, SILO, PERIOD = "(label)", "(subject)", "(silo)", "(period)"


class InvalidInput(UserError, ValueError):
    """An argument that cannot be used; a ValueError, as scikit-learn expects."""


class TacitEstimator(BaseEstimator):
    """What the three estimators share.

    epsilon       the largest epsilon over the views that are protected; None for a method without noise
    delta         of the guarantee; None: as in an experiment file without ``privacy.delta``
    method        name of the method, or the keys of ``[method]``
    model         name of the model, or the keys of ``[model]``; None: a linear one
    rounds        None: as in an experiment file without ``train.rounds``
    columns       public constants of the features (``mean``, ``scale``, ``low``, ``high``): one entry for all, or
                  entries by name (``x0``, ``x1``, … where ``X`` has no names)
    standardize   ``"declared"``, or ``"private"``: with noise, within public bounds if all features have them
    settings      sections of an experiment file, for everything else; they replace what the estimator sets
    out           the new folder of the run; None: a folder that is deleted with the estimator
    random_state  seed of everything, noise included: for studies only. None: secure randomness

    ``fit(X, y, subjects=None, silos=None)``: ``X [rows, features]`` numbers. ``subjects [rows]`` says whose a row is:
    without it, each row is a subject of its own. ``silos [rows]`` says where a row lives: without it, there is one
    silo, and the guarantee is for the view ``public``.

    After ``fit``: ``plan_``, ``run_``, ``guarantees_``.
    """

    _linear = "linear"

    def __init__(
        self,
        epsilon: float | None = 4.0,
        *,
        delta: float | None = None,
        method: str | Mapping[str, Any] = "subject-sgd",
        model: str | Mapping[str, Any] | None = None,
        rounds: int | None = None,
        columns: Mapping[str, Any] | None = None,
        standardize: str = "declared",
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.model = model
        self.rounds = rounds
        self.columns = columns
        self.standardize = standardize
        self.settings = settings
        self.out = out
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    # -- training

    def _trained(self, frame: pd.DataFrame, data: dict[str, Any], also_read: Sequence[str] = ()) -> Self:
        """Train on the table ``frame``; ``data`` is the section ``[data]``. Counts, and what ``also_read`` names, were
        read from the table."""
        given, counted = self.settings or {}, ["data.subjects.count"]
        counted += ["data.silos.count"] if "column" in data["silos"] else []
        read = (*counted, *also_read)
        data = {**data, "from_this_table": [name for name in read if not _has(given, name)]}
        experiment = _merged(self._experiment(data), given)
        experiment["data"] |= {key: data[key] for key in ("classes",) if key in data}  # codes, whatever their names
        self.plan_ = api.plan(experiment)
        self._folder = TemporaryDirectory(prefix="tacit-") if self.out is None else None
        out = self.out if self._folder is None else Path(self._folder.name) / "run"
        self.run_ = api.run(self.plan_, frame, out=out, progress=Silence())
        if self.run_.result["status"] == "stopped":
            raise KeyboardInterrupt
        return self

    def _experiment(self, data: dict[str, Any]) -> dict[str, Any]:
        """What is not given follows the rules of experiment files."""
        model = self.model or self._linear
        privacy: dict[str, Any] = {} if self.delta is None else {"delta": float(self.delta)}
        if "column" not in data["silos"]:  # no other silo is left that could be protected from this one
            privacy["against"] = ["public"]
        return {
            "title": type(self).__name__,
            "data": {"numeric": self._numeric(), "standardize": self.standardize, **data},
            "method": {
                **({"name": self.method} if isinstance(self.method, str) else self.method),
                **({} if self.epsilon is None else {"target_epsilon": float(self.epsilon)}),
            },
            "model": {"name": model} if isinstance(model, str) else dict(model),
            "train": {} if self.rounds is None else {"rounds": int(self.rounds)},
            "privacy": privacy,
            "evaluation": {"data": "none"},
            **({} if self.random_state is None else {"seed": int(self._drawn_seed())}),
        }

    def _drawn_seed(self) -> int:
        seed = self.random_state
        return int(seed) if isinstance(seed, int | np.integer) else check_random_state(seed).randint(2**31)

    def _owners(self, rows: int, subjects: Any, silos: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Whose the rows are and where they live: keys of ``[data]``, and columns ``[rows]`` by name."""
        options: dict[str, Any] = {"subjects": {"count": rows}, "silos": {"count": 1}}
        columns = {}
        for name, column, values in (("subjects", SUBJECT, subjects), ("silos", SILO, silos)):
            if values is not None:
                found = np.asarray(column_or_1d(values))
                if len(found) != rows:
                    problem = f"has {len(found)} entries for {rows} rows"
                    raise InvalidInput("mismatch", name, problem, "give one entry per row of X")
                columns[column] = found
                options[name] = {"column": column, "count": len(pd.unique(found))}
        return options, columns

    @property
    def _names(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        return [f"x{j}" for j in range(self.n_features_in_)] if names is None else [str(name) for name in names]

    def _numeric(self) -> dict[str, Any]:
        given = self.columns or {}
        by_name = all(isinstance(entry, Mapping) for entry in given.values())
        if by_name and (unknown := [name for name in given if name not in self._names]):
            problem = f"there is no feature '{unknown[0]}'"
            raise InvalidInput("unknown-name", "columns", problem, f"use {', '.join(self._names[:5])}, …")
        return {name: dict(given.get(name, {}) if by_name else given) for name in self._names}

    def _frame(self, X: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame(X, columns=self._names)

    # -- use

    def _checked(self, X: Any) -> pd.DataFrame:
        """New rows as a table."""
        check_is_fitted(self)
        return self._frame(validate_data(self, X, reset=False, dtype=np.float64))

    @property
    def guarantees_(self) -> list[dict[str, Any]]:
        """What the run promises, one entry per view."""
        check_is_fitted(self)
        return self.run_.guarantees()

    # -- a pickle holds the files of the run that ``predict`` needs: neither ledger nor checkpoint

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_folder", None)
        if "run_" in state:
            folder = state.pop("run_").path
            names = (PLAN, RESULT, METRICS, MODEL, ENCODER)
            state["_files"] = {name: (folder / name).read_bytes() for name in names}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files", None)
        super().__setstate__(state)
        if files is not None:
            self._folder = TemporaryDirectory(prefix="tacit-")
            for name, content in files.items():
                (Path(self._folder.name) / name).write_bytes(content)
            self.run_ = api.Run.load(self._folder.name)


class TacitClassifier(ClassifierMixin, TacitEstimator):
    """A private classifier. Parameters and attributes of :class:`TacitEstimator`, and ``classes_``.

    Declare the classes with ``settings={"data": {"classes": [...]}}``; otherwise they are read from ``y``, and each
    guarantee says so.
    """

    _linear = "logistic"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # noise outweighs what 100 rows say
        return tags

    def fit(self, X: Any, y: Any, subjects: Any = None, silos: Any = None) -> Self:
        """Train a private model of the classes ``y [rows]``."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        declared = (self.settings or {}).get("data", {}).get("classes")
        self.classes_ = np.unique(y) if declared is None else np.asarray(declared)
        if len(self.classes_) < 2:
            problem = f"y has one class, {self.classes_[0]!r}"
            raise InvalidInput("too-few", "y", problem, "a classifier needs at least two classes")
        codes = np.array([{value: k for k, value in enumerate(self.classes_)}.get(value, -1) for value in y])
        if (codes < 0).any():
            problem = f"y has the class {y[codes < 0][0]!r}, which is not declared"
            raise InvalidInput("undeclared-value", "data.classes", problem, "add it, or drop the rows")
        owners, columns = self._owners(len(X), subjects, silos)
        kind = "binary" if len(self.classes_) == 2 else "multiclass"
        data = {**owners, "label": LABEL, "task": kind, "classes": len(self.classes_)}
        return self._trained(self._frame(X).assign(**{LABEL: codes}, **columns), data, ("data.classes",))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities ``[rows, classes]``, in the order of ``classes_``."""
        found = self._predictions(X)
        if "probability" in found:
            second = found["probability"].to_numpy()
            return np.column_stack([1 - second, second])
        return found.drop(columns="prediction").to_numpy(np.float64)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        chosen = self._predictions(X)["prediction"].to_numpy()
        return np.asarray(self.classes_[chosen])

    def _predictions(self, X: Any) -> pd.DataFrame:
        rows = self._checked(X)
        return self.run_.predict(rows)


class TacitRegressor(RegressorMixin, TacitEstimator):
    """A private regression. Parameters and attributes of :class:`TacitEstimator`.

    target_mean, target_scale  public constants: the model learns ``(y - target_mean) / target_scale``, which should be
                               between -3 and 3. ``run_`` predicts on this scale, ``predict`` on that of ``y``.
    """

    def __init__(
        self,
        epsilon: float | None = 4.0,
        *,
        delta: float | None = None,
        method: str | Mapping[str, Any] = "subject-sgd",
        model: str | Mapping[str, Any] | None = None,
        rounds: int | None = None,
        columns: Mapping[str, Any] | None = None,
        standardize: str = "declared",
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        random_state: Any = None,
        target_mean: float = 0.0,
        target_scale: float = 1.0,
    ) -> None:
        super().__init__(
            epsilon,
            delta=delta,
            method=method,
            model=model,
            rounds=rounds,
            columns=columns,
            standardize=standardize,
            settings=settings,
            out=out,
            random_state=random_state,
        )
        self.target_mean = target_mean
        self.target_scale = target_scale

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # noise outweighs what 100 rows say
        return tags

    def fit(self, X: Any, y: Any, subjects: Any = None, silos: Any = None) -> Self:
        """Train a private model of the numbers ``y [rows]``."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        owners, columns = self._owners(len(X), subjects, silos)
        scaled = (np.asarray(y, np.float64) - self.target_mean) / self.target_scale
        data = {**owners, "label": LABEL, "task": "real"}
        return self._trained(self._frame(X).assign(**{LABEL: scaled}, **columns), data)

    def predict(self, X: Any) -> np.ndarray:
        """The expected number of each row."""
        rows = self._checked(X)
        found = self.run_.predict(rows)["prediction"].to_numpy(np.float64)
        return np.asarray(found * self.target_scale + self.target_mean)


class TacitSurvival(TacitEstimator):
    """Private survival analysis in discrete time. Parameters and attributes of :class:`TacitEstimator`.

    times  public ends of the periods, increasing: ``[1, 2, 5, 10]`` are the periods (0, 1], (1, 2], (2, 5] and (5, 10].
           What happens later counts as survival of all periods

    The model is the logistic regression of the hazard, the probability of the event in a period for those who reached
    it (Cox 1972, section 6; Singer and Willett 1993). A row has a record for each period that it survived, and one for
    the period of its event. A record has a loss of its own, which the partial likelihood of the model ``cox`` does not
    have: that loss cannot be trained with methods that clip what one subject with one row contributes.
    """

    _linear = "logistic"

    def __init__(
        self,
        epsilon: float | None = 4.0,
        *,
        times: Sequence[float] | None = None,
        delta: float | None = None,
        method: str | Mapping[str, Any] = "subject-sgd",
        model: str | Mapping[str, Any] | None = None,
        rounds: int | None = None,
        columns: Mapping[str, Any] | None = None,
        standardize: str = "declared",
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            epsilon,
            delta=delta,
            method=method,
            model=model,
            rounds=rounds,
            columns=columns,
            standardize=standardize,
            settings=settings,
            out=out,
            random_state=random_state,
        )
        self.times = times

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def fit(self, X: Any, y: Any, subjects: Any = None, silos: Any = None) -> Self:
        """Train a private model of the hazard.

        ``y`` is ``[rows, 2]`` (time, event), a structured array of a boolean and a number, or ``[rows]`` times if all
        events were observed.
        """
        X, times, events = self._survivals(X, y)
        ends = self._ends()
        owners, columns = self._owners(len(X), subjects, silos)
        frame = self._frame(X).assign(**columns)
        if SUBJECT not in columns:  # the records of a row have one owner, whose key depends on no other row
            keyed = from_frame(frame.assign(**{"(time)": times, "(event)": events}))
            frame[SUBJECT] = row_keys(keyed, None).astype(str)
            owners["subjects"] = {"column": SUBJECT, "count": len(X)}
        data = {
            **owners,
            "label": LABEL,
            "task": "binary",
            "categorical": {PERIOD: list(range(len(ends)))},
        }
        return self._trained(in_periods(frame, times, events, ends), data)

    def predict_survival_function(self, X: Any) -> np.ndarray:
        """The probability ``[rows, times]`` of no event until each of ``times``."""
        rows, periods = self._checked(X), len(self._ends())
        long = rows.loc[rows.index.repeat(periods)].reset_index(drop=True)
        long[PERIOD] = np.tile(np.arange(periods), len(rows))
        hazard = self.run_.predict(long)["probability"].to_numpy(np.float64).reshape(len(rows), periods)
        return np.asarray(np.cumprod(1 - hazard, axis=1))

    def predict(self, X: Any) -> np.ndarray:
        """The risk of each row: the cumulative hazard at the last of ``times``. More means sooner."""
        return np.asarray(-np.log(np.maximum(self.predict_survival_function(X)[:, -1], 1e-300)))

    def score(self, X: Any, y: Any) -> float:
        """Harrell's concordance index."""
        check_is_fitted(self)
        X, times, events = self._survivals(X, y, reset=False)
        return c_index(self.predict(self._frame(X) if hasattr(self, "feature_names_in_") else X), np.c_[times, events])

    def _ends(self) -> np.ndarray:
        ends = np.asarray([] if self.times is None else self.times, np.float64)
        if not ends.size or (np.diff(ends, prepend=0.0) <= 0).any():
            problem = "is missing" if not ends.size else f"{ends.tolist()} does not increase from above 0"
            raise InvalidInput("missing" if not ends.size else "out-of-range", "times", problem, "use [1, 2, 5], say")
        return ends

    def _survivals(self, X: Any, y: Any, reset: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Checked rows, their times and whether the event was observed, each ``[rows]``."""
        if (fields := getattr(getattr(y, "dtype", None), "names", None)) is not None:
            event, time = sorted(fields, key=lambda name: y.dtype[name].kind != "b")
            y = np.column_stack([y[time].astype(np.float64), y[event].astype(np.float64)])
        X, y = validate_data(self, X, y, reset=reset, dtype=np.float64, multi_output=True, y_numeric=True)
        if y.ndim == 2 and y.shape[1] == 2:
            times, events = y[:, 0], y[:, 1]
        else:
            times = column_or_1d(y, warn=True)
            events = np.ones(len(times))
        if not (times > 0).all():
            raise InvalidInput("out-of-range", "y", "has times that are not positive", "give times above 0")
        return X, times, events


def in_periods(frame: pd.DataFrame, times: np.ndarray, events: np.ndarray, ends: np.ndarray) -> pd.DataFrame:
    """The rows of ``frame`` once for each period that they survived, and for that of their event (label 1)."""
    period = np.searchsorted(ends, times, side="left")  # in which a row ends; all are survived beyond the last
    happened = (events > 0) & (period < len(ends))
    records = period + happened
    which = np.arange(records.sum()) - np.repeat(np.cumsum(records) - records, records)
    label = np.repeat(happened, records) & (which == np.repeat(period, records))
    long = frame.loc[np.repeat(np.arange(len(frame)), records)].reset_index(drop=True)
    return long.assign(**{PERIOD: which, LABEL: label.astype(int)})


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with all ``changes``, section by section."""
    found = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = _merged(found[key], value) if both else value
    return found


def _has(tree: Mapping[str, Any], name: str) -> bool:
    """Whether a setting such as ``data.subjects.count`` is given."""
    key, _, rest = name.partition(".")
    return key in tree and (not rest or (isinstance(tree[key], Mapping) and _has(tree[key], rest)))
