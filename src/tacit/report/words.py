"""Numbers and sentences of the pages, for readers who did not run the experiment."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tacit.privacy import View
from tacit.privacy.statement import rounded_up
from tacit.report.run_files import Baseline, Metrics, RunFiles, StatedAsPublished, StatedGuarantee

MISSING = "–"
MINUS = "\N{MINUS SIGN}"

METRICS = {
    "accuracy": ("Accuracy", "share of right answers"),
    "auc": ("AUC", "chance that a positive case is ranked above a negative one; 0.5 is a coin toss"),
    "average_precision": ("Average precision", "precision over all thresholds; by chance, the share of cases"),
    "f1": ("F1", "balance of precision and recall"),
    "log_loss": ("Log-loss", "penalty for confident wrong answers"),
    "c_index": ("C-index", "chance that the earlier of two events is ranked first; 0.5 is a coin toss"),
    "rmse": ("RMSE", "typical error, in the unit of the label"),
    "r2": ("R²", "share of variance explained"),
}

UNITS = {
    "record": "one record",
    "subject": "one person, with all records in all silos",
    "silo": "one silo, with all its records",
}
SHORT_UNITS = {"record": "one record", "subject": "one person", "silo": "one silo"}
RELATIONS = {
    "zero-out": "with or without (zero-out)",
    "replace": "replaced by another (replace)",
}
VALIDITY = {"yes": "valid", "only-if": "valid only under a condition", "no": "not valid"}
HELD_OUT = {
    "subjects": "held-out people of the private data",
    "records": "held-out records of the private data",
    "given": "the test part that came with the private data",
    "file": "a separate test file",
    "elsewhere": "held-out people of the silos that release their metrics (averages over silos)",
}
ACCOUNTANTS = {
    "gaussian": "exact for Gaussian noise",
    "pld": "privacy loss distributions, rounded up",
    "rdp": "Rényi divergences",
    "simple": "sum of the parts",
    "blanket": "privacy blanket of the shuffled reports",
    "unsampled": "as if all subjects were in every batch",
    "split": "privacy loss distributions and Rényi divergences, half of delta each",
}
WORK = {
    "compile": "Compiling",
    "train": "Training",
    "exchange": "Exchange",
    "evaluate": "Evaluating",
    "ledger": "Ledger and checkpoints",
    "total": "Total",
}
BASELINES = {
    "silo-only": "Each silo alone",
    "pooled": "All records pooled",
    "fedavg": "FedAvg, no privacy",
    "local-record": "Single records protected, same epsilon",
    "shared": "Shared model",
}


# ---- numbers


def decimals(value: float) -> int:
    """Digits after the point."""
    size = abs(value)
    return 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3


def number(value: float | None) -> str:
    """A metric: three decimals for the usual ones, fewer for large numbers, two digits for tiny ones."""
    if value is None or not math.isfinite(value):
        return MISSING
    if 0 < abs(value) < 0.0005:
        return f"{value:.1e}".replace("e-0", "e-").replace("-", MINUS)
    return f"{value:,.{decimals(value)}f}".replace("-", MINUS)


def difference(value: float | None, other: float | None) -> str:
    """``value - other`` with its sign, as precise as the two are shown."""
    if value is None or other is None:
        return MISSING
    if number(value) == number(other):
        return "0"
    change = value - other
    digits = decimals(max(abs(value), abs(other)))
    shown = f"{abs(change):,.{digits}f}" if round(abs(change), digits) else f"{abs(change):.1e}"
    return ("+" if change > 0 else MINUS) + shown


def count(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"


def counted(value: int, one: str, many: str | None = None) -> str:
    """``1 silo``, ``6 silos``."""
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def duration(seconds: float | None) -> str:
    """Seconds in the largest two units."""
    if seconds is None:
        return MISSING
    if seconds < 0.095:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def epsilon(value: float) -> str:
    if not math.isfinite(value):
        return "∞"
    up = rounded_up(value, 3)  # rounded up: what is shown still holds
    return f"{math.ceil(value):,}" if value >= 1000 else f"{up:#.3g}".rstrip(".")


def published_epsilon(value: float) -> str:
    """A paper's own number, rounded to four digits as papers print it: it is no guarantee."""
    if not math.isfinite(value):
        return "∞"
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.4g}"


def delta(value: float | None) -> str:
    """``10⁻⁵`` or ``2.5 × 10⁻⁶``."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    if value >= 0.01:
        return f"{value:.2g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if mantissa == "1.0" else f"{mantissa.removesuffix('.0')} × {power}"


# ---- names


def metric(name: str) -> str:
    """The usual name of a metric."""
    known = METRICS.get(name.lower().replace("-", "_"))
    return known[0] if known else name.replace("_", " ")


def metric_in_sentence(name: str) -> str:
    """Within a sentence: AUC stays, Accuracy becomes accuracy."""
    shown = metric(name)
    return shown.lower() if re.fullmatch(r"[A-Z][a-z]+([- ][a-z]+)*", shown) else shown


def metric_note(run: RunFiles, name: str) -> str:
    """What the metric means and which way is better."""
    known = METRICS.get(name.lower().replace("-", "_"))
    better = "higher is better" if run.better(name) > 0 else "lower is better"
    return f"{known[1]} ({better})" if known else better


def unit(name: str, *, short: bool = False) -> str:
    return (SHORT_UNITS if short else UNITS).get(name, name or MISSING)


def view(name: str) -> str:
    """A view in words."""
    try:
        known = View.parse(name)
    except ValueError:
        return name or MISSING
    return f"{known.who} ({', '.join(known.members)})" if known.members else known.who


def relation(name: str) -> str:
    return RELATIONS.get(name, name or MISSING)


def baseline(name: str) -> str:
    return BASELINES.get(name, name)


# ---- sentences


def sentence(words: str) -> str:
    """Text with a capital first letter and a full stop."""
    return f"{words[:1].upper()}{words[1:]}."


def without_folders(plan: str) -> str:
    """The experiment file without the folders of its paths, which the page must not reveal."""
    return re.sub(r'"/(?:[^"/\n]*/)*([^"/\n]+)"', r'"…/\1"', plan)


def in_one_line(run: RunFiles) -> str:
    """Method, model, silos, rounds and data: the line below the title."""
    model = str(run.model.get("name") or "model")
    size = run.model.get("parameters")
    parts = [
        str(run.method.get("label") or run.method.get("name") or ""),
        f"{model}, {counted(size, 'parameter')}" if isinstance(size, int) else model,
        counted(run.silo_count or len(run.silos), "silo") if run.silo_count or run.silos else "",
        counted(run.rounds, "round"),
        f"data: {run.source}" if run.source else "",
    ]
    return " · ".join(part for part in parts if part)


def stopped(run: RunFiles) -> str | None:
    """The banner of a run that did not reach its end."""
    if run.status == "finished":
        return None
    if run.status == "diverged":
        return (
            f"Training diverged: after round {count(run.rounds)} the model was no longer finite. "
            "Its learning rate is too high; the numbers here are not results."
        )
    if run.status == "budget":
        limit = "" if run.budget is None else f" (epsilon {run.budget:g})"
        planned = counted(run.rounds_planned, "planned round")
        return (
            f"Stopped by its privacy budget{limit} after round {count(run.rounds)} of {planned}: the next one would "
            "have exceeded it. All numbers on this page describe the model of that round."
        )
    return (
        f"This run was stopped after {count(run.rounds)} of {counted(run.rounds_planned, 'planned round')}. "
        "All numbers on this page describe the model as it was then."
    )


def evaluation(run: RunFiles) -> str | None:
    """On what the metrics were computed, and whether the guarantee covers them; None where there are none."""
    if not run.metric_names:
        return None
    held_out = run.evaluation.get("held_out")
    data = HELD_OUT.get(str(held_out), "held-out data")
    status = run.evaluation.get("status")
    if status == "public":
        where = "public data" if held_out in ("file", None) else f"{data}, declared public"
        return f"These metrics were computed on {where}; releasing them reveals nothing private."
    if status == "paid":
        return f"These metrics were computed on {data}; the guarantee covers their release."
    if status == "outside-guarantee":
        return f"These metrics were computed on {data} and are outside the guarantee."
    return None


def no_metrics(evaluation: Mapping[str, Any]) -> str:
    """Why a run has no metrics, and what to do about it."""
    if evaluation.get("held_out") == "elsewhere" and evaluation.get("status") != "paid":
        return (
            "No metrics: the silos keep metrics without noise (policy metrics = false, or no hold-out). "
            'Use [evaluation] status = "private" in the experiment.'
        )
    return "No metric was computed in this run."


def metrics_outside(run: RunFiles) -> str | None:
    """The reminder next to metrics that a finite guarantee does not cover."""
    if run.evaluation.get("status") != "outside-guarantee" or not any(line.finite for line in run.guarantees):
        return None
    if not run.metric_names and not run.baselines:
        return None
    beside = " So are the references, metrics and models." if run.baselines else ""
    return f"Metrics are outside the guarantee: they were computed on private records.{beside}"


def seed(run: RunFiles) -> str | None:
    """What a seed means for the reader."""
    if run.seed is None:
        return None
    return f"This run used seed {run.seed}: its random choices, noise included, can be regenerated from the seed."


def not_to_publish(run: RunFiles) -> str | None:
    """With a seed, a finite guarantee holds only if the model is not published."""
    if run.seed is None or not any(line.finite for line in run.guarantees):
        return None
    return (
        "The model must not be published: anyone who knows the seed can remove the noise, "
        "and the guarantee would not hold."
    )


def no_promise(guarantees: tuple[StatedGuarantee, ...]) -> str | None:
    """The plain sentence for a run without any finite guarantee; None where there is one."""
    if any(line.finite for line in guarantees):
        return None
    if not guarantees:
        return "No privacy guarantee: this run states none."
    return "No privacy guarantee: this run gives epsilon = infinity for every view."


def promise(line: StatedGuarantee) -> str:
    """One finite guarantee in one sentence, or what is not promised."""
    if not line.finite:
        return f"No guarantee for {unit(line.unit, short=True)} against {view(line.view)} (epsilon = infinity)."
    at = f" at delta = {delta(line.delta)}" if line.delta is not None else ""
    return f"Protects {unit(line.unit)}, from {view(line.view)}: epsilon = {epsilon(line.epsilon)}{at}."


def as_published(published: StatedAsPublished | None) -> str:
    """The paper's own number and whether it holds."""
    if published is None:
        return MISSING
    verdict = VALIDITY.get(published.valid, published.valid)
    reason = f": {published.reason}" if published.reason else ""
    return f"ε = {published_epsilon(published.epsilon)}, {verdict}{reason}"


# ---- is joining worth it?

RANKING = {"auc", "average_precision", "c_index"}


@dataclass(frozen=True)
class Joining:
    """Number of silos that are better or worse together than alone by one metric, as precise as the page shows it."""

    helped: int
    hurt: int
    equal: int
    undefined: int

    @property
    def compared(self) -> int:
        return self.helped + self.hurt + self.equal


def side(together: float | None, alone: float | None, better: int) -> int | None:
    """1 if together is better, -1 if worse, 0 if they look equal on the page, None if there is nothing to compare."""
    if together is None or alone is None:
        return None
    if number(together) == number(alone):
        return 0
    return 1 if (together - alone) * better > 0 else -1


def joining(together: Mapping[str, Metrics], alone: Mapping[str, Metrics], metric: str, better: int) -> Joining:
    sides = [side(values.get(metric), alone.get(name, {}).get(metric), better) for name, values in together.items()]
    return Joining(sides.count(1), sides.count(-1), sides.count(0), sides.count(None))


# if one class is rare, a model that never predicts it has a high accuracy, but low values of these two
BESIDE_ACCURACY = ("auc", "average_precision")


def judges(task: str, headline: str, metrics: Metrics) -> list[str]:
    """The metrics of a verdict: the headline, and for two classes also those that show errors in a rare class."""
    others = [name for name in BESIDE_ACCURACY if name != headline and metrics.get(name) is not None]
    return [headline, *(others if task == "binary" else [])]


def is_joining_worth_it(run: RunFiles) -> list[str]:
    """The answer in a few sentences, from the numbers; empty where there is nothing to compare with."""
    alone, pooled = run.baselines.get("silo-only"), run.baselines.get("pooled")
    sentences = []
    if alone:
        verdict = joining(run.silos, alone.silos, run.headline, run.better(run.headline))
        others = [name for name in judges(run.task, run.headline, run.metrics)[1:] if name in alone.metrics]
        by = f"By {metric_in_sentence(run.headline)}, j" if others else "J"
        sentences += [
            _by_silo(verdict).replace("J", by, 1),
            _overall(run, _judged(run.headline, alone)),
            _other_judges(run, alone, others),
        ]
    if pooled:
        before = _judged(run.headline, alone) if alone else None
        sentences.append(_against_pooled(run, before))
    return [sentence for sentence in sentences if sentence]


# ---- own models


def worst_silo(silos: Mapping[str, Metrics], metric: str, better: int) -> tuple[str, float] | None:
    """The silo with the worst value of a metric, and that value; None where no silo has one."""
    known = [(name, value) for name, values in silos.items() if (value := values.get(metric)) is not None]
    return min(known, key=lambda pair: pair[1] * better) if known else None


def own_against_shared(run: RunFiles) -> list[str]:
    """Whether the silos' own models are better than the shared model; empty if there are none."""
    shared, metric, better = run.shared, run.headline, run.better(run.headline)
    if shared is None:
        return []
    one, all_ = _judged(metric, run), _judged(metric, shared)
    verdict = joining(run.silos, shared.silos, metric, better)
    name = metric_in_sentence(metric)
    sentences = []
    if verdict.compared:
        level = f", {count(verdict.equal)} are level" if verdict.equal else ""
        sentences.append(
            f"The silos' own models are better than the shared model in {count(verdict.helped)} of "
            f"{counted(verdict.compared, 'silo')}{level}."
        )
    if one is not None and all_ is not None:
        where = "on average over silos" if metric in RANKING and run.silos else "over all held-out records"
        sentences.append(f"By {name} {where}: {number(one)} against {number(all_)}.")
    worst, worst_shared = (worst_silo(silos, metric, better) for silos in (run.silos, shared.silos))
    if worst is not None and worst_shared is not None:
        sentences.append(
            f"In the worst silo: {number(worst[1])} ({worst[0]}) with its own model, {number(worst_shared[1])} "
            f"({worst_shared[0]}) with the shared model."
        )
    return sentences


def _other_judges(run: RunFiles, alone: Baseline, others: list[str]) -> str:
    """Whether the metrics for a rare class agree with the headline."""

    def pair(name: str) -> tuple[float | None, float | None]:
        return _judged(name, run), _judged(name, alone)

    def direction(name: str) -> int | None:
        return side(*pair(name), run.better(name))

    known = [name for name in others if direction(name) is not None]
    main = direction(run.headline)
    if not known or main is None:
        return ""
    against = [name for name in known if direction(name) != main]
    if not against:
        agree = "agrees" if len(known) == 1 else "agree"
        listed = " and ".join(metric_in_sentence(name) for name in known)
        return f"{listed[:1].upper()}{listed[1:]} {agree}."
    said = {1: "better together", -1: "worse together", 0: "level"}
    listed = "; ".join(
        f"by {metric_in_sentence(name)} ({number(pair(name)[0])} against {number(pair(name)[1])} alone"
        f"{', on average over silos' if name in RANKING else ''}) it is {said[direction(name) or 0]}"
        for name in against
    )
    weak = metric_in_sentence(run.headline)
    return f"The metrics disagree: {listed}. Where one class is rare, these say more than {weak}."


def _judged(metric: str, scores: RunFiles | Baseline) -> float | None:
    """The number to compare by: over all records; for a ranking metric the average over silos, weighted by their test
    records, because scores of different models cannot be ranked against each other. Old folders hold no such average:
    theirs is the plain mean."""
    if metric not in RANKING or not scores.silos:
        return scores.metrics.get(metric)
    if metric in scores.over_silos:
        return scores.over_silos[metric]
    known = [value for silo in scores.silos.values() if (value := silo.get(metric)) is not None]
    return sum(known) / len(known) if known else None


def _by_silo(verdict: Joining) -> str:
    total = verdict.compared
    if not total:
        return ""
    silos = counted(total, "silo")
    equal = f"{count(verdict.equal)} {'is' if verdict.equal == 1 else 'are'} level" if verdict.equal else ""
    who = "all" if verdict.hurt == total > 1 else count(verdict.hurt)
    alone = f"{who} {'does' if verdict.hurt == 1 else 'do'} better alone" if verdict.hurt else ""
    rest = " and ".join(part for part in (alone, equal) if part)
    if verdict.helped == total:
        sentence = f"Joining helped all {silos}" if total > 1 else "Joining helped the one silo compared"
    elif verdict.helped:
        sentence = f"Joining helped {count(verdict.helped)} of the {silos}; {rest}"
    elif verdict.hurt:
        sentence = f"Joining helped none of the {silos}; {rest}"
    else:
        sentence = f"Joining made no visible difference to any of the {silos}"
    if verdict.undefined:
        sentence += f" ({counted(verdict.undefined, 'silo')} could not be compared)"
    return sentence + "."


def _overall(run: RunFiles, alone: float | None) -> str:
    together = _judged(run.headline, run)
    direction = side(together, alone, run.better(run.headline))
    if direction is None:
        return ""
    name = metric_in_sentence(run.headline)
    where = "On average over silos" if run.headline in RANKING and run.silos else "Overall"
    if direction == 0:
        return f"{where}, {name} is {number(together)} both together and alone."
    word = "better" if direction > 0 else "worse"
    return f"{where}, {name} is {number(together)} together and {number(alone)} for silos alone: {word} together."


def _against_pooled(run: RunFiles, alone: float | None) -> str:
    together, better = _judged(run.headline, run), run.better(run.headline)
    pooled = _judged(run.headline, run.baselines["pooled"])
    direction = side(pooled, together, better)
    if direction is None or pooled is None or together is None:
        return ""
    averaged = " on average over silos" if run.headline in RANKING and run.silos else ""
    start = f"All records pooled in one place give {number(pooled)}{averaged}"
    if direction == 0:
        return f"{start}, the same as the federation."
    if direction < 0:
        return f"{start}, no better than the federation."
    if alone is not None and side(together, alone, better) == 1:
        closed = f"{100 * (together - alone) / (pooled - alone):.0f}\N{NO-BREAK SPACE}%"
        return f"{start}; joining closes {closed} of the gap between working alone and pooling."
    return f"{start}, better than the federation."
