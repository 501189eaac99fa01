"""What a requester asks a federation for: an experiment that means the same wherever it is read.

An experiment that travels names no file: nobody's paths mean anything to the others, and a silo opens no file and
imports no module because a request says so. Data come from the silos' own tables, people and silos are those that there
are, and the columns are declared, so that all silos make the same features of their rows.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.data import SOURCES, source_facts
from tacit.errors import TacitError, UserError
from tacit.exchange import EXCHANGES
from tacit.federation.protocol.agreement import check_method, meant
from tacit.federation.site.limits import check_counts, deadline, parsed
from tacit.methods import METHODS
from tacit.models import is_built_in
from tacit.names import plugin_names
from tacit.planning.experiment import Experiment, read_experiment
from tacit.planning.plan import Plan, plan

NOWHERE = Path("/nonexistent")  # where the relative paths of an experiment that travels would start
RUN_DIGITS, MOST_ATTEMPTS = 32, 1000
SILO_COUNT = "data.silos.count"


@dataclass(frozen=True)
class Sealed:
    """A request whose experiment was not looked at yet: who asks, and for which attempt at which run.

    text       the experiment, as :func:`travelling` wrote it
    run        32 hexadecimal digits that the requester drew
    attempt    1, and one more whenever the run is asked for again (after a crash)
    requester  who signed it
    """

    text: str
    run: str
    attempt: int
    requester: str

    def __post_init__(self) -> None:
        if not (isinstance(self.run, str) and len(self.run) == RUN_DIGITS and set(self.run) <= set("0123456789abcdef")):
            raise UserError("malformed", "run", "is not 32 hexadecimal digits", "ask with `tacit submit`")
        if type(self.attempt) is not int or not 1 <= self.attempt <= MOST_ATTEMPTS:
            problem = f"is not a number from 1 to {MOST_ATTEMPTS}"
            raise UserError("out-of-range", "attempt", problem, "ask with `tacit submit`")

    def opened(self, silos: int | None = None) -> Request:
        """With the plan of the experiment; a UserError where it is none, or not for that number of silos."""
        return Request(received(self.text, silos), self.run, self.attempt, self.requester)


@dataclass(frozen=True)
class Request:
    """An experiment, who asks for it, and for which attempt at which run (see :class:`Sealed`)."""

    plan: Plan
    run: str
    attempt: int
    requester: str

    @property
    def digest(self) -> str:
        """What is asked for and by whom, in a few digits: the same for all attempts at a run."""
        return hashlib.sha256(f"{self.requester}\n{travelling(self.plan)}".encode()).hexdigest()[:32]


def travelling(planned: Plan) -> str:
    """The experiment of a plan as text that gives all parties the same plan to the last digit
    (:func:`~tacit.federation.protocol.agreement.meant`). Refuses (UserError) one that would differ elsewhere."""
    content = meant(planned)
    _check_portable(read_experiment(content))
    return json.dumps(content)


def left_behind(planned: Plan) -> list[str]:
    """The fields of an experiment that name files of the requester's machine, and do not travel."""
    experiment = planned.experiment
    given = {"data.path": experiment.data.path, "privacy.budget_file": experiment.privacy.budget_file}
    return [field for field, name in given.items() if name is not None]


def received(text: str, silos: int | None = None) -> Plan:
    """The plan of an experiment that came from elsewhere; a UserError where it is none, names files or modules, counts
    on more than a federation can have, or on another number of ``silos``. Nothing is computed before its counts are
    within their limits."""
    content = parsed(text)
    try:
        with deadline():
            return _planned(content, silos)
    except TacitError:
        raise
    except Exception as error:  # whatever its numbers do to the arithmetic of a plan, it is no plan
        problem = f"cannot be planned ({type(error).__name__})"
        raise UserError("invalid-value", "experiment", problem, "check it with `tacit plan`") from None


def _planned(content: dict[str, Any], silos: int | None) -> Plan:
    experiment = read_experiment(content)
    check_counts(experiment)
    counted = experiment.data.silos.count
    if silos is not None and counted != silos:
        problem = f"is {counted}, and the federation has {silos} silos"
        raise UserError("mismatch", SILO_COUNT, problem, f"set it to {silos}")
    _check_portable(experiment)
    check_method(experiment.made_method().info)
    if experiment.data.path is not None or experiment.privacy.budget_file is not None:
        problem = "an experiment that travels has no paths"
        raise UserError("simulator-only", "data.path", problem, "ask with `tacit submit`")
    if experiment.method.get("target_epsilon") is not None:
        problem = "an experiment that travels names its noise, and no target to solve for"
        raise UserError("simulator-only", "method.target_epsilon", problem, "ask with `tacit submit`")
    content = experiment.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
    # no party sees the records of all silos: to each of them the cap is a promise about the data
    content["privacy"] = content.get("privacy", {}) | {"over_silo_cap": "refuse"}
    return plan(content, folder=NOWHERE)


def _check_portable(experiment: Experiment) -> None:
    """Refuse what would be looked up on the machine of whoever reads it."""
    data, model = experiment.data, experiment.model
    local = {
        "model.init_from": model.init_from is not None,
        "data.schema": data.schema_ is not None,
        "evaluation.data": experiment.evaluation.data != "held-out",
    }
    for field, given in local.items():
        if given:
            problem = "names a file, which silos would not open"
            raise UserError("simulator-only", field, problem, "leave it out in a federation")
    privacy = experiment.privacy
    if "over_silo_cap" in privacy.model_fields_set and privacy.over_silo_cap == "drop":
        problem = "'drop' needs the records of all silos in one place"
        fix = 'use "refuse": the cap is then a promise about the data'
        raise UserError("simulator-only", "privacy.over_silo_cap", problem, fix)
    if not is_built_in(model.name):
        problem = f"'{model.name}' is not part of Tacit, and silos run built-in models only"
        raise UserError("simulator-only", "model.name", problem, "use a built-in model in a federation")
    method, exchange = experiment.method.get("name"), experiment.exchange.name
    if method not in METHODS and method in plugin_names("tacit.methods"):
        problem = f"'{method}' is not part of Tacit, and silos run built-in methods only"
        raise UserError("simulator-only", "method.name", problem, "use a built-in method in a federation")
    if exchange not in EXCHANGES and exchange in plugin_names("tacit.exchanges"):
        problem = f"'{exchange}' is not part of Tacit, and silos run built-in exchanges only"
        raise UserError("simulator-only", "exchange.name", problem, "use a built-in exchange in a federation")
    for field, made in (("data.subjects.assign", data.subjects.assign), ("data.silos.assign", data.silos.assign)):
        if made:
            problem = "in a federation, people and silos are those that there are"
            raise UserError("simulator-only", field, problem, "leave it out")
    known = source_facts(data) if data.source in SOURCES else None
    if known is None or known.columns is None:
        problem = f"source '{data.source}' is not a built-in table, and silos of a federation hold tables"
        raise UserError("simulator-only", "data.source", problem, 'use "table"')
    if known.feature_shape is None:
        problem = "is missing: silos must make the same features of their rows"
        fix = "declare the feature columns (data.numeric, data.categorical)"
        raise UserError("missing", "data.numeric", problem, fix)
    if known.subject_column is None:
        problem = "is missing: whose a row is"
        raise UserError("missing", "data.subjects.column", problem, "name the column of the identifiers")
    if not known.subject_count:
        problem = "is missing: how many subjects there are in all silos is public"
        fix = "declare it, for example the number that the silos expect"
        raise UserError("missing", "data.subjects.count", problem, fix)
    if data.standardize == "per-silo":
        problem = "'per-silo' is not part of a federation"
        raise UserError("simulator-only", "data.standardize", problem, 'use "declared"')
