"""Numbers and sentences for readers: people on a board, not only those who ran the experiment."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tacit.report.folder import AsPublished, Guarantee, Metrics, RunFiles

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
VIEWS = {
    "public": "anyone who sees the released models",
    "server": "the server",
    "silo": "another silo",
    "shuffler": "the shuffler",
    "analyzer": "the analyzer",
    "shuffler+analyzer": "shuffler and analyzer together",
    "neighbour": "a neighbouring silo",
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
}
WORK = {
    "compile": "Compiling",
    "train": "Training",
    "exchange": "Exchange",
    "evaluate": "Evaluating",
    "total": "Total",
}
BASELINES = {"silo-only": "Each silo alone", "pooled": "All records pooled"}


# ---- numbers


def decimals(value: float) -> int:
    """Digits after the point that are worth reading."""
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
    """Seconds as a person would say them."""
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
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.3g}".rstrip(".")


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
    """The metric as people write it."""
    known = METRICS.get(name.lower().replace("-", "_"))
    return known[0] if known else name.replace("_", " ")


def metric_in_sentence(name: str) -> str:
    """Within a sentence: AUC stays, Accuracy becomes accuracy."""
    shown = metric(name)
    return shown.lower() if re.fullmatch(r"[A-Z][a-z]+(-[a-z]+)?", shown) else shown


def metric_note(run: RunFiles, name: str) -> str:
    """What the metric means and which way is better."""
    known = METRICS.get(name.lower().replace("-", "_"))
    better = "higher is better" if run.better(name) > 0 else "lower is better"
    return f"{known[1]} ({better})" if known else better


def unit(name: str, *, short: bool = False) -> str:
    return (SHORT_UNITS if short else UNITS).get(name, name or MISSING)


def view(name: str) -> str:
    """From whom: the views of the design in plain words."""
    if name in VIEWS:
        return VIEWS[name]
    if match := re.fullmatch(r"(server\+)?silos:(\d+)", name):
        silos = counted(int(match[2]), "silo") + (" together" if int(match[2]) > 1 else "")
        return f"the server together with {counted(int(match[2]), 'silo')}" if match[1] else silos
    if match := re.fullmatch(r"coalition:\[?(.*?)\]?", name):
        return f"a coalition of {match[1]}"
    return name or MISSING


def relation(name: str) -> str:
    return RELATIONS.get(name, name or MISSING)


def baseline(name: str) -> str:
    return BASELINES.get(name, name)


# ---- sentences


def sentence(words: str) -> str:
    """A capital in front, a full stop behind; the letters between stay as they are."""
    return f"{words[:1].upper()}{words[1:]}."


def in_one_line(run: RunFiles) -> str:
    """What was done, under the title."""
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
            "Its learning rate is too high; nothing here is a result."
        )
    return (
        f"This run was stopped after {count(run.rounds)} of {counted(run.rounds_planned, 'planned round')}. "
        "All numbers on this page describe the model as it was then."
    )


def evaluation(run: RunFiles) -> str | None:
    """On what the metrics were computed, and whether the guarantee covers them."""
    held_out = run.evaluation.get("held_out")
    data = HELD_OUT.get(str(held_out), "held-out data")
    status = run.evaluation.get("status")
    if status == "public":
        where = "public data" if held_out in ("file", None) else f"{data}, declared public"
        return f"These metrics were computed on {where}; releasing them reveals nothing private."
    if status == "paid":
        return f"These metrics were computed on {data}; releasing them is paid for within the guarantee."
    if status == "outside-guarantee":
        return f"These metrics were computed on {data} and are outside the guarantee."
    return None


def seed(run: RunFiles) -> str | None:
    """What a seed means for the reader."""
    if run.seed is None:
        return None
    return f"This run used seed {run.seed}: its random choices, noise included, can be regenerated from the seed."


def not_to_publish(run: RunFiles) -> str | None:
    """With a seed, a finite guarantee holds only as long as nobody outside gets the model."""
    if run.seed is None or not any(line.finite for line in run.guarantees):
        return None
    return (
        "The model must not be published: whoever knows the seed can remove the noise, "
        "and the guarantee would not hold."
    )


def no_promise(guarantees: tuple[Guarantee, ...]) -> str | None:
    """The plain sentence for a run without any finite guarantee; None where there is one."""
    if any(line.finite for line in guarantees):
        return None
    if not guarantees:
        return "No privacy guarantee: this run states none."
    return "No privacy guarantee: this run gives epsilon = infinity for every view."


def promise(line: Guarantee) -> str:
    """One finite guarantee in one sentence, or what is not promised."""
    if not line.finite:
        return f"No guarantee for {unit(line.unit, short=True)} against {view(line.view)} (epsilon = infinity)."
    at = f" at delta = {delta(line.delta)}" if line.delta is not None else ""
    return f"Protects {unit(line.unit)}, from {view(line.view)}: epsilon = {epsilon(line.epsilon)}{at}."


def as_published(published: AsPublished | None) -> str:
    """The paper's own number and whether it holds."""
    if published is None:
        return MISSING
    verdict = VALIDITY.get(published.valid, published.valid)
    reason = f": {published.reason}" if published.reason else ""
    return f"ε = {epsilon(published.epsilon)}, {verdict}{reason}"


# ---- is joining worth it?

RANKING = {"auc", "average_precision", "c_index"}


@dataclass(frozen=True)
class Joining:
    """How silos fare together against alone, by one metric, at the precision that the page shows."""

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


def is_joining_worth_it(run: RunFiles) -> list[str]:
    """The answer in up to three sentences, from the numbers; empty where there is nothing to compare with."""
    alone, pooled = run.baselines.get("silo-only"), run.baselines.get("pooled")
    sentences = []
    if alone:
        verdict = joining(run.silos, alone.silos, run.headline, run.better(run.headline))
        sentences += [_by_silo(verdict), _overall(run, _judged(run.headline, alone.metrics, alone.silos))]
    if pooled:
        before = _judged(run.headline, alone.metrics, alone.silos) if alone else None
        sentences.append(_against_pooled(run, before))
    return [sentence for sentence in sentences if sentence]


def _judged(metric: str, overall: Metrics, silos: Mapping[str, Metrics]) -> float | None:
    """The number to compare by: over all records; for a ranking metric the mean over silos, because scores of
    different models cannot be ranked against each other."""
    if metric not in RANKING or not silos:
        return overall.get(metric)
    known = [value for silo in silos.values() if (value := silo.get(metric)) is not None]
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
    together = _judged(run.headline, run.metrics, run.silos)
    direction = side(together, alone, run.better(run.headline))
    if direction is None:
        return ""
    name = metric_in_sentence(run.headline)
    where = "On average over silos" if run.headline in RANKING else "Overall"
    if direction == 0:
        return f"{where}, {name} is {number(together)} both together and alone."
    word = "better" if direction > 0 else "worse"
    return f"{where}, {name} is {number(together)} together and {number(alone)} for silos alone: {word} together."


def _against_pooled(run: RunFiles, alone: float | None) -> str:
    together, better = _judged(run.headline, run.metrics, run.silos), run.better(run.headline)
    everything = run.baselines["pooled"]
    pooled = _judged(run.headline, everything.metrics, everything.silos)
    direction = side(pooled, together, better)
    if direction is None or pooled is None or together is None:
        return ""
    start = f"All records pooled in one place give {number(pooled)}"
    if direction == 0:
        return f"{start}, the same as the federation."
    if direction < 0:
        return f"{start}, no better than the federation."
    if alone is not None and side(together, alone, better) == 1:
        closed = f"{100 * (together - alone) / (pooled - alone):.0f}\N{NO-BREAK SPACE}%"
        return f"{start}; joining closes {closed} of the gap between working alone and pooling."
    return f"{start}, better than the federation."
