"""Limits of a request, at server and silos alike, checked in the order of their cost: nothing large is parsed, built or
priced for a requester who may not ask for it.

The length of a text is checked before it is parsed, its nesting and number of values before they are checked one by
one, and counts before a plan is made of them. The rest has a deadline. These limits are the same for all parties and
far above what a federation needs; a silo's policy sets its own below them (``most_rounds`` and so on).
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit.errors import UserError
from tacit.models import is_built_in
from tacit.models.packed_model import PACKED
from tacit.models.record_memory import record_bytes
from tacit.planning.experiment import Experiment
from tacit.planning.plan import Plan, model_and_form, sum_facts
from tacit.transport.packed import MOST_BYTES

MOST_JOB_BYTES, MOST_JOB_FILES = MOST_BYTES, 64  # of a whole job, as it is sent and as it is unpacked
MOST_TEXT = 1 << 16  # characters of an experiment
MOST_MODEL = 3 << 19  # bytes of a packed model that travels with it
MOST_DEPTH, MOST_VALUES = 8, 10_000  # tables in tables; keys, entries of lists and values together
MOST_NAME = 1000  # characters of one text
MOST_ROUNDS, MOST_SILOS, MOST_SUBJECTS = 1_000_000, 1000, 2**31 - 1  # pseudonyms are numbers of 32 bits
MOST_CATEGORIES = 10_000  # columns, categories and classes together
MOST_LAYERS = 100
# Records of one subject: in a silo, and in all silos together. A price tabulates how many of them a batch has.
MOST_RECORDS, MOST_RECORDS_IN_ALL = 10_000, 100_000
MOST_BANDS = 1000  # of correlated noise
MOST_COUNT = 10**9  # every other whole number but a seed
CAP = "privacy.max_records_per_subject_and_silo"
SECONDS = 30.0  # for a plan and its price
FIX = "ask for less"
_DEEP = f"is nested deeper than {MOST_DEPTH} tables or lists"


def check_job(folder: Path) -> None:
    """A UserError where the files of a job are more, or larger, than a request can be."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.lstat().st_size for path in files)
    if len(files) > MOST_JOB_FILES or size > MOST_JOB_BYTES:
        problem = f"{len(files)} files of {size} bytes; at most {MOST_JOB_FILES} of {MOST_JOB_BYTES} are accepted"
        raise UserError("too-many", "request", problem, FIX)


def parsed(text: str) -> dict[str, Any]:
    """The content of an experiment that travels (JSON), within the limits on its form."""
    _check(f"has {len(text)} characters, and {MOST_TEXT} are accepted", len(text) > MOST_TEXT)
    try:
        content = json.loads(text)
    except RecursionError:
        raise UserError("too-many", "experiment", _DEEP, FIX) from None
    except ValueError:
        raise UserError("malformed", "experiment", "is no valid JSON", "ask with `tacit submit`") from None
    if not isinstance(content, dict):
        raise UserError("malformed", "experiment", "is no table of sections", "ask with `tacit submit`")
    level: list[Any] = [content]
    depth = count = 0
    while level:
        tables = [value for value in level if isinstance(value, dict)]
        lists = [value for value in level if isinstance(value, list)]
        texts = [*(value for value in level if isinstance(value, str)), *(key for table in tables for key in table)]
        depth, count = depth + 1, count + len(level) + sum(map(len, tables))
        _check(f"has more than {MOST_VALUES} keys and values", count > MOST_VALUES)
        _check(_DEEP, depth > MOST_DEPTH + 1)
        _check(f"has a text of more than {MOST_NAME} characters", any(len(one) > MOST_NAME for one in texts))
        if not all(map(_is_text, texts)):
            raise UserError("malformed", "experiment", "has half of a character", "ask with `tacit submit`")
        level = [value for holder in (*(table.values() for table in tables), *lists) for value in holder]
    return content


def _is_text(text: str) -> bool:
    """Whether it has whole characters only: JSON can name the halves of one."""
    return not any(0xD800 <= ord(letter) < 0xE000 for letter in text)


def _check(problem: str, is_broken: bool) -> None:
    if is_broken:
        raise UserError("too-many", "experiment", problem, FIX)


def check_counts(experiment: Experiment) -> None:
    """A UserError where a count of an experiment is above its limit."""
    data = experiment.data
    columns = 0 if data.numeric is None else len(data.numeric)
    names = [*data.categorical.values(), *([data.classes] if isinstance(data.classes, tuple) else [])]
    classes = data.classes if isinstance(data.classes, int) else 0
    hidden = experiment.model.numbers.get("hidden", ())
    records, silos = experiment.privacy.max_records_per_subject_and_silo or 0, data.silos.count or 1
    group, correlated = experiment.method.get("group_size"), experiment.method.get("correlated_noise")
    bands = correlated.get("bands") if isinstance(correlated, dict) else None
    found = {
        "train.rounds": (experiment.train.rounds, MOST_ROUNDS),
        "data.silos.count": (data.silos.count or 0, MOST_SILOS),
        "data.subjects.count": (data.subjects.count or 0, MOST_SUBJECTS),
        "data.categorical": (columns + classes + sum(1 + len(some) for some in names), MOST_CATEGORIES),
        CAP: (records, min(MOST_RECORDS, MOST_RECORDS_IN_ALL // silos)),
        "method.group_size": (group if isinstance(group, int) else 0, MOST_RECORDS_IN_ALL),
        "method.correlated_noise.bands": (bands if isinstance(bands, int) else 0, MOST_BANDS),
        **{f"model.{key}": (_number(experiment.model.numbers.get(key)), MOST_LAYERS) for key in ("layers", "blocks")},
        "model.hidden": (len(hidden) if isinstance(hidden, list | tuple) else 0, MOST_LAYERS),
    }
    for field, (count, most) in found.items():
        if count > most:
            raise UserError("too-many", field, f"is {count}, and at most {most} are accepted", FIX)
    others = experiment.model_dump(exclude={"seed": True, "data": {"seed"}})
    for field, number in _whole_numbers(others):
        if abs(number) > (MOST_SUBJECTS if field == "data.subjects.count" else MOST_COUNT):
            raise UserError("too-many", field, f"is {number}, and at most {MOST_COUNT} is accepted", FIX)


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _whole_numbers(content: Any) -> Iterator[tuple[str, int]]:
    """Every whole number of a content whose depth was checked, with the keys that lead to it."""
    todo = [("", content)]
    while todo:
        where, value = todo.pop()
        if isinstance(value, dict):
            todo += [(f"{where}.{key}" if where else str(key), part) for key, part in value.items()]
        elif isinstance(value, list | tuple):
            todo += [(where, part) for part in value]
        elif isinstance(value, int) and not isinstance(value, bool):
            yield where, value


class _Late(BaseException):
    """The deadline has passed; no handler of planning catches it."""


@contextmanager
def deadline(seconds: float = SECONDS) -> Iterator[None]:
    """A UserError where the block takes longer. It is interrupted between two steps of the interpreter; the limits on
    counts keep each step short."""
    thread, lock, over = threading.get_ident(), threading.Lock(), False

    def interrupt() -> None:
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Late))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        try:
            yield
        finally:
            with lock:
                over = True
    except _Late:
        raise UserError("timeout", "experiment", f"its plan and price take longer than {seconds:g} s", FIX) from None
    finally:
        timer.cancel()


# Bytes of memory of a silo's process, rounded up: without a model, for a parameter (model, update, optimiser, masks,
# messages in two forms), a subject (weights, counts) and a sealed report. Measured: 510, 670 and 2,300 MB for 0.1, 1
# and 25 million parameters.
_PROCESS, _PER_PARAMETER, _PER_SUBJECT, _PER_REPORT = 600 << 20, 80, 64, 128
# Records that kernels work on at the same time. Of built-in models, values forward are counted beyond the four for each
# parameter that dense layers have, whose memory was measured; of models of others, all values and gradients are.
_ROWS, _OWN_ROWS, _BYTES_OF_DENSE = 256, 1024, 16


def megabytes(plan: Plan) -> int:
    """About how much memory a silo's process needs for the plan, from its public numbers alone."""
    return (_PROCESS + _needed(plan) + _values(plan)) >> 20


def message_bytes(plan: Plan) -> int:
    """No message of a run has more bytes, apart from what surrounds it: all that a silo holds for the plan. Where a
    model's size is not public, or some of its layers are frozen and not counted, as much as a process needs."""
    model = plan.experiment.model
    is_counted = plan.parameters is not None and not (
        model.freeze or model.train or model.low_rank or ":" in model.name
    )
    return _needed(plan) + (0 if is_counted else _PROCESS)


def _needed(plan: Plan) -> int:
    facts, parameters = plan.promise.facts, plan.parameters or 0
    subjects, known = facts.subjects or 0, sum_facts(plan.method, facts)
    need = _PER_PARAMETER * parameters + _PER_SUBJECT * subjects + plan.exchange.memory(subjects, parameters)
    if known.reports is not None:
        need += _PER_REPORT * known.reports.dimensions * known.reports.padded
    return need


def _values(plan: Plan) -> int:
    """Bytes of what kernels hold of records on their way through the model."""
    if plan.parameters is None:
        return 0
    model, shape, _ = model_and_form(plan)
    is_ours = is_built_in(plan.experiment.model.name) and plan.experiment.model.name != PACKED
    held = record_bytes(model, shape, gradient=not is_ours)
    return _ROWS * max(0, held - _BYTES_OF_DENSE * plan.parameters) if is_ours else _OWN_ROWS * held
