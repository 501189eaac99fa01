"""Numbers and sentences of the pages, for readers who did not run the experiment."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tacit.privacy import View
from tacit.privacy.terms import rounded_up
from tacit.report.page import MISSING, Html, Page
from tacit.report.run_files import Metrics, RunFiles, StatedAsPublished, StatedGuarantee, StoredScores

MINUS = "\N{MINUS SIGN}"

# name, meaning
METRICS = {
    "accuracy": ("Accuracy", "share of right answers"),
    "macro_auc": ("Mean AUC", "AUC of each label, averaged over labels"),
    "label_accuracy": ("Accuracy over labels", "share of right answers over all records and labels"),
    "mean_log_loss": ("Log loss over labels", "mean over all records and labels"),
    "balanced_accuracy": ("Balanced accuracy", "share of right answers in each class, averaged over classes"),
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
# of metrics: on what they were computed, and whether the guarantee covers them; metrics with noise have status "paid"
EVALUATION = {
    "public": "{}; releasing them reveals nothing private",
    "paid": "{}; the guarantee covers their release",
    "outside-guarantee": "{} and are outside the guarantee",
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
# of a run that did not reach its end: the heading and the text of its banner
STOPPED = {
    "diverged": (
        "Stopped early",
        "Training diverged: after round {done} the model was no longer finite. Its learning rate is too high; the "
        "numbers here are not results.",
    ),
    "budget": (
        "Stopped by its privacy budget",
        "Stopped by its privacy budget{limit} after round {done} of {planned}: the next one would have exceeded it. "
        "All numbers on this page describe the model of that round.",
    ),
    "stopped": (
        "Stopped early",
        "This run was stopped after {done} of {planned}. All numbers on this page describe the model as it was then.",
    ),
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


def hidden(value: float | None, error: float | None) -> str:
    """What to print for a metric that its noise hides: one that is cut off, or smaller than its standard error. Empty
    for all others. Metrics with noise are cut off at the ends of their range: 0, and 1 for shares."""
    if value is None or error is None:
        return ""
    if value <= error:
        return f"below its noise (± {number(error)})"
    return f"cut off at 1 (± {number(error)})" if value == 1.0 else ""


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


def counted(value: int, one: str) -> str:
    """``1 silo``, ``6 silos``."""
    return f"{count(value)} {one if value == 1 else one + 's'}"


def about(records: int | None) -> str:
    """A rounded number of records; 0 stands for fewer than 10."""
    return MISSING if records is None else f"about {count(records)}" if records else "fewer than 10"


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


def which_is_better(run: RunFiles, name: str) -> str:
    return "higher is better" if run.better(name) > 0 else "lower is better"


def metric_note(run: RunFiles, name: str) -> str:
    """What the metric means and which way is better."""
    known, better = METRICS.get(name.lower().replace("-", "_")), which_is_better(run, name)
    return sentence(f"{known[1]} ({better})" if known else better)


def unit(name: str, *, short: bool = False) -> str:
    """``short``: without what it includes."""
    words = UNITS.get(name, name or MISSING)
    return words.partition(",")[0] if short and name in UNITS else words


def view(name: str) -> str:
    """A view in words."""
    try:
        known = View.parse(name)
    except ValueError:
        return name or MISSING
    return f"{known.who} ({', '.join(known.members)})" if known.members else known.who


def baseline(name: str) -> str:
    return BASELINES.get(name, name)


# ---- sentences


def sentence(words: str) -> str:
    """Text with a capital first letter and a full stop."""
    return f"{capital(words)}."


def capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def without_folders(plan: str) -> str:
    """The experiment file without the folders of its paths, which the page must not reveal."""
    return re.sub(r'"/(?:[^"/\n]*/)*([^"/\n]+)"', r'"…/\1"', plan)


def in_one_line(run: RunFiles) -> str:
    """Method, model, silos, rounds and data: the line below the title."""
    size, silos = run.model.get("parameters"), run.silo_count or len(run.silos)
    model = str(run.model.get("name") or "model")
    parts = [
        run.label,
        f"{model}, {counted(size, 'parameter')}" if isinstance(size, int) else model,
        counted(silos, "silo") if silos else "",
        counted(run.rounds, "round"),
        f"data: {run.source}" if run.source else "",
    ]
    return " · ".join(filter(None, parts))


def page_of(run: RunFiles, kicker: str, parts: Sequence[Html], banners: Sequence[Html]) -> Page:
    return Page(run.title, kicker, in_one_line(run), parts, banners, run.environment.get("tacit"))


def stopped(run: RunFiles) -> tuple[str, str] | None:
    """Heading and text of the banner of a run that did not reach its end."""
    if run.status == "finished":
        return None
    heading, text = STOPPED.get(run.status, STOPPED["stopped"])
    limit = "" if run.budget is None else f" (epsilon {run.budget:g})"
    return heading, text.format(
        done=count(run.rounds), planned=counted(run.rounds_planned, "planned round"), limit=limit
    )


def evaluation(run: RunFiles) -> str:
    """On what the metrics were computed, and whether the guarantee covers them; nothing where there are none."""
    held_out, status = run.evaluation.get("held_out"), str(run.evaluation.get("status"))
    if not run.metric_names or status not in EVALUATION:
        return ""
    data = HELD_OUT.get(str(held_out), "held-out data")
    if status == "public":
        data = "public data" if held_out in ("file", None) else f"{data}, declared public"
    return f"These metrics were computed on {EVALUATION[status].format(data)}."


def no_metrics(evaluation: Mapping[str, Any]) -> str:
    """Why a run has no metrics, and what to do about it."""
    if evaluation.get("held_out") == "elsewhere" and evaluation.get("status") != "paid":
        return (
            "No metrics: the silos keep metrics without noise (policy metrics = false, or no hold-out). "
            'Use [evaluation] status = "private" in the experiment.'
        )
    return "No metric was computed in this run."


def metrics_outside(run: RunFiles) -> str:
    """The reminder next to metrics that a finite guarantee does not cover."""
    if run.evaluation.get("status") != "outside-guarantee" or not run.private:
        return ""
    if not run.metric_names and not run.baselines:
        return ""
    references = " So are the references, metrics and models." if run.baselines else ""
    if run.test_records:
        references = f" So are the rounded numbers of test records.{references}"
    return f"Metrics are outside the guarantee: they were computed on private records.{references}"


def seed(run: RunFiles) -> str:
    """What a seed means for the reader."""
    if run.seed is None:
        return ""
    return f"This run used seed {run.seed}: its random choices, noise included, can be regenerated from the seed."


def not_to_publish(run: RunFiles) -> str:
    """With a seed, a finite guarantee holds only if the model is not published."""
    if run.seed is None or not run.private:
        return ""
    return (
        "The model must not be published: anyone who knows the seed can remove the noise, "
        "and the guarantee would not hold."
    )


def unconfirmed(run: RunFiles) -> str:
    """What a finite guarantee depends on that the experiment file marks as read from the private table."""
    found = next((line for line in run.guarantees if line.valid == "only-if" and line.assumptions), None)
    return "" if found is None else f"Only if: {sentence(found.assumptions[0])}"


def seen_across_silos(run: RunFiles) -> str:
    """What the simulator knew, and silos of a federation would not; empty where there was no such cap."""
    cap, privacy = run.seen_across_silos, run.settings.get("privacy") or {}
    if cap is None:
        return ""
    did = "checked" if privacy.get("over_silo_cap") == "refuse" else "enforced, by dropping records beyond it,"
    return (
        f"This run was simulated. The cap of {counted(cap, 'silo')} per person (max_silos_per_subject) was {did} by "
        "looking at the records of all silos together. Silos of a federation cannot do that: there, the cap is an "
        "assumption about the data."
    )


def no_promise(run: RunFiles) -> str:
    """The plain sentence for a run without any finite guarantee; nothing where there is one."""
    if run.private:
        return ""
    stated = "gives epsilon = infinity for every view" if run.guarantees else "states none"
    return f"No privacy guarantee: this run {stated}."


def promise(line: StatedGuarantee) -> str:
    """One finite guarantee in one sentence, or what is not promised."""
    if not line.finite:
        return f"No guarantee for {unit(line.unit, short=True)} against {view(line.view)} (epsilon = infinity)."
    at = f" at delta = {delta(line.delta)}" if line.delta is not None else ""
    return f"Protects {unit(line.unit)}, from {view(line.view)}: epsilon = {epsilon(line.epsilon)}{at}."


def as_published(published: StatedAsPublished) -> str:
    """The paper's own number and whether it holds."""
    verdict = VALIDITY.get(published.valid, published.valid)
    reason = f": {published.reason}" if published.reason else ""
    return f"ε = {published_epsilon(published.epsilon)}, {verdict}{reason}"


# ---- two models for every silo: together or alone, its own or the shared one

# scores of different models cannot be ranked against each other: these are compared by their average over silos
RANKING = {"auc", "macro_auc", "average_precision", "c_index"}
# what a federation is compared with
COMPARED = {"alone": "silo-only", "pooled": "pooled"}
# if one class is rare, a model that never predicts it has a high accuracy, but low values of these two
WITH_ACCURACY = ("auc", "average_precision")


def side(together: float | None, alone: float | None, better: int) -> int | None:
    """1 if together is better, -1 if worse, 0 if they look equal on the page, None if there is nothing to compare."""
    if together is None or alone is None:
        return None
    if number(together) == number(alone):
        return 0
    return 1 if (together - alone) * better > 0 else -1


def judges(task: str, headline: str, metrics: Metrics) -> list[str]:
    """The metrics of a verdict: the headline, and for two classes also those that show errors in a rare class."""
    others = [name for name in WITH_ACCURACY if name != headline and metrics.get(name) is not None]
    return [headline, *(others if task == "binary" else [])]


def worst_silo(silos: Mapping[str, Metrics], metric: str, better: int) -> tuple[str, float] | None:
    """The silo with the worst value of a metric, and that value; None where no silo has one."""
    known = [(name, value) for name, values in silos.items() if (value := values.get(metric)) is not None]
    return min(known, key=lambda pair: pair[1] * better) if known else None


def is_joining_worth_it(run: RunFiles) -> list[str]:
    """The answer in a few sentences, from the numbers; empty where there is nothing to compare with."""
    models: dict[str, StoredScores] = {"together": run}
    models |= {name: run.baselines[kind] for name, kind in COMPARED.items() if kind in run.baselines}
    if len(models) < 2:
        return []
    headline, better, alone = run.headline, run.better(run.headline), models.get("alone")
    names = [
        name for name in judges(run.task, headline, run.metrics) if all(name in m.metrics for m in models.values())
    ]
    counts = "" if alone is None else _counts(run, alone, "better alone")
    sentences = [
        counts and f"By {metric_in_sentence(headline)}, joining helped {counts}",
        *(_compared(run, name, models) for name in names),
    ]
    together, before, ideal = (_judged(headline, models.get(name)) for name in ("together", *COMPARED))
    if side(together, before, better) == side(ideal, together, better) == 1:
        closed = f"{100 * ((together or 0) - (before or 0)) / ((ideal or 0) - (before or 0)):.0f}\N{NO-BREAK SPACE}%"
        sentences.append(f"Joining closes {closed} of the gap between working alone and pooling.")
    sides = {name: side(_judged(name, run), _judged(name, alone), run.better(name)) for name in names}
    against = [metric_in_sentence(name) for name in names if sides[name] != sides[names[0]]]
    if against and None not in sides.values():
        weak = metric_in_sentence(headline)
        sentences.append(
            f"The metrics disagree: where one class is rare, {' and '.join(against)} says more than {weak}."
        )
    return [sentence for sentence in sentences if sentence]


def own_against_shared(run: RunFiles, shared: StoredScores) -> list[str]:
    """Whether the silos' own models are better than the shared model."""
    counts = _counts(run, shared, "worse")
    own, one = (worst_silo(scores.silos, run.headline, run.better(run.headline)) for scores in (run, shared))
    sentences = [
        counts and f"The silos' own models are better than the shared model in {counts}",
        _compared(run, run.headline, {"with own models": run, "with the shared model": shared}),
        own
        and one
        and f"In the worst silo: {number(own[1])} ({own[0]}) with its own model, {number(one[1])} ({one[0]}) with the "
        "shared model.",
    ]
    return [sentence for sentence in sentences if sentence]


def _counts(run: RunFiles, other: StoredScores, worse: str) -> str:
    """For how many silos the run's models are better than the other ones; nothing if none can be compared."""
    pairs = [(values, other.silos.get(name, {})) for name, values in run.silos.items()]
    better = run.better(run.headline)
    sides = [side(one.get(run.headline), two.get(run.headline), better) for one, two in pairs]
    compared = len(sides) - sides.count(None)
    rest = {worse: sides.count(-1), "level": sides.count(0), "not comparable": sides.count(None)}
    listed = "".join(f"; {word}: {count(silos)}" for word, silos in rest.items() if silos)
    return f"{count(sides.count(1))} of {counted(compared, 'silo')}{listed}." if compared else ""


def _compared(run: RunFiles, name: str, models: Mapping[str, StoredScores]) -> str:
    """The metric of each model that has it, and whether the first is better than the second."""
    found = {model: value for model, scores in models.items() if (value := _judged(name, scores)) is not None}
    if len(found) < 2 or next(iter(models)) not in found:
        return ""
    (first, value), (second, other) = list(found.items())[:2]
    better = {1: f"better {first} than {second}", -1: f"worse {first} than {second}", 0: "equal", None: ""}
    where = " on average over silos" if name in RANKING and run.silos else ""
    listed = ", ".join(f"{number(value)} {model}" for model, value in found.items())
    return f"{metric(name)}{where}: {listed} ({better[side(value, other, run.better(name))]})."


def _judged(metric: str, scores: StoredScores | None) -> float | None:
    """The number to compare by: over all records; for a ranking metric the average over silos, weighted by their test
    records. Old folders hold no such average: theirs is the plain mean."""
    if scores is None:
        return None
    if metric not in RANKING or not scores.silos:
        return scores.metrics.get(metric)
    if metric in scores.over_silos:
        return scores.over_silos[metric]
    known = [value for silo in scores.silos.values() if (value := silo.get(metric)) is not None]
    return sum(known) / len(known) if known else None
