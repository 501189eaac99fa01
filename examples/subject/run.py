"""All subject-level methods beside each other: one command, one page.

    TACIT_DATA=… python examples/subject/run.py docs/subject.md                   writes all tables and pictures
    TACIT_DATA=… python examples/subject/run.py docs/subject.md --only randhie    one part of the page

For every data set: each method at *proved* epsilon 4 for a person (delta 1e-5), then those of the papers at their *own*
epsilon 4, with what is proved about that run beside it. Settings are chosen on training people (research/study.py).
Every part of the page stands between two comments with its name; pictures lie in a folder beside the page.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from worlds import Contender, Outcome, World, compete, people_of, planned, repeat

from research import plots
from research.picture import Mark, dots
from research.study import Settings, simulated
from tacit.report.page import RUN_STYLES

HERE = Path(__file__).parent


SEEDS = (0, 1, 2)
EPSILON = 4.0
SKEWS = (1, 2, 4, 8, 16)

WRITERS = World(HERE / "writers.toml", "accuracy")
# a tenth of the people: as many records less, and batches of twice the share, as [SubjectDP-2] has them larger
FEW = World(
    HERE / "writers.toml",
    "accuracy",
    declared={"data.subjects": {"column": "writer", "count": 54}, "data.records_per_silo": 375},
    people=0.1,
)

TARGET = {"target_epsilon": EPSILON}
# a record that is removed makes room for another one where there are caps: single records are protected without them
NO_CAPS = {"privacy.max_records_per_subject_and_silo": None, "privacy.max_silos_per_subject": None}
SUBJECT = {"privacy.unit": "subject"}
PLAIN = {"train.server_learning_rate": 1.0, "train.server_optimizer": "sgd"}
# two batches a round keep the number of batches, and so the noise of the papers' methods, low
BATCHES = {"sample_rate": 0.05, "batches_per_round": 2}
LOCAL = {"clip": (0.5,), "local_learning_rate": (0.5, 5.0, 30.0)}
# silos use up rounds (R/s): fewer of them with less noise may be better, and so may fewer records of a person
ROUNDS = {"train.rounds": (10, 40)}
RECORDS = {"privacy.max_records_per_subject_and_silo": (2, 5)}


def in_batches(name: str, holds: str, changes: Settings, grid: Settings, **numbers: object) -> Contender:
    """A method of [SubjectDP-1] and [SubjectDP-2] whose silos add noise to every batch."""
    return Contender(name, holds, {"name": name, **BATCHES, **TARGET, **numbers}, grid, {**PLAIN, **changes})


FEDAVG = Contender(
    "fedavg",
    "none",
    {"name": "fedavg", "batch_size": 64},
    {"local_learning_rate": (0.1, 0.5, 3.0)},
    {**PLAIN, "train.rounds": 20},
)
SUBJECT_SGD = Contender(
    "subject-sgd",
    "proved",
    {"name": "subject-sgd", **TARGET},
    {"clip": (0.1, 0.5), "train.server_learning_rate": (2.0, 12.0, 40.0)},
    SUBJECT,
)
# for digits: the best of that grid and of more rounds, once, on the same held-out training writers
FOR_DIGITS = replace(SUBJECT_SGD, grid={"clip": (0.1,), "train.server_learning_rate": (12.0,)})
HIGRAD = in_batches("higrad", "proved", SUBJECT, {**LOCAL, **ROUNDS, **RECORDS})
PUBLISHED = {**SUBJECT, "privacy.target": "as-published"}
HIGRAD_PUBLISHED = in_batches("higrad", "as published", PUBLISHED, LOCAL)
# the paper's accounting has no noise for groups of 17 and more; batches hardly ever have one of more than 10
GROUP_PUBLISHED = in_batches("local-group", "as published", PUBLISHED, LOCAL, noise="as-published", group_cap=10)
OF_A_RECORD = in_batches("local-record", "proved, for a record", {"privacy.unit": "record", **NO_CAPS}, LOCAL)

CENTRAL = {"clip": (0.5,), "train.server_learning_rate": (0.5, 4.0)}
CENTRAL_GROUP = {"name": "central-group", "sample_rate": 0.05, **TARGET}

ALL = (
    FEDAVG,
    SUBJECT_SGD,
    HIGRAD,
    HIGRAD_PUBLISHED,
    OF_A_RECORD,
    GROUP_PUBLISHED,
    Contender("central-group", "proved", CENTRAL_GROUP, CENTRAL, SUBJECT),
    in_batches("pooled-dp-sgd", "proved", SUBJECT, LOCAL),
    in_batches("local-record", "proved", SUBJECT, LOCAL),
    in_batches("local-group", "proved", SUBJECT, LOCAL),
    in_batches("user-ldp", "proved", SUBJECT, LOCAL),
    in_batches("user-ldp", "as published", PUBLISHED, LOCAL),
    Contender("central-group", "as published", CENTRAL_GROUP, CENTRAL, PUBLISHED),
    Contender(
        "dp-fedavg",
        "proved",
        {"name": "dp-fedavg", "batch_size": 64, "local_learning_rate": 0.1, **TARGET},
        {"clip": (0.5,)},
        {**SUBJECT, **PLAIN},
    ),
)


class Page:
    """Where the parts of the page go, and what was found already: an interrupted command goes on where it stopped."""

    def __init__(self, file: Path | None, found: Path | None, most: int | None = None) -> None:
        self.file, self._file_of_found, self.most = file, found, most
        self._found = json.loads(found.read_text(encoding="utf-8")) if found is not None and found.exists() else {}

    def outcome(self, name: str, contender: Contender, work: Callable[..., Outcome], *given: object) -> Outcome:
        """``work``, or what it found before under that name; told on the terminal with the time it took."""
        key = f"{name}: {contender.label}, {contender.holds}"
        if key in self._found:
            return Outcome(contender, **self._found[key])
        begun = time.monotonic()
        outcome = work(*given)
        print(f"{name} {row(outcome)} {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        self._found[key] = {field.name: getattr(outcome, field.name) for field in fields(Outcome)[1:]}
        if self._file_of_found is not None:
            self._file_of_found.write_text(json.dumps(self._found, indent=1), encoding="utf-8")
        return outcome

    def picture(self, name: str, title: str, drawn: str) -> list[str]:
        """A picture beside the page, and the line that shows it."""
        if self.file is not None:
            folder = self.file.parent / self.file.stem
            folder.mkdir(exist_ok=True)
            (folder / f"{name}.svg").write_text(drawn, encoding="utf-8")
        return [f"![{title}]({self.file.stem if self.file else '.'}/{name}.svg)", ""]

    def put(self, name: str, lines: Sequence[str]) -> None:
        if self.file is None:
            return
        text = self.file.read_text(encoding="utf-8")
        begin, end = f"<!-- {name}: written by examples/subject/run.py -->", f"<!-- /{name} -->"
        before, after = text.split(begin)[0], text.split(end)[1]
        self.file.write_text("\n".join([before + begin, "", *lines, end + after]), encoding="utf-8")


# -- parts of the page


def comparison(name: str, title: str, world: World, contenders: Sequence[Contender]) -> Callable[[Page], list[str]]:
    """A table of contenders, and a picture of it."""

    def part(page: Page) -> list[str]:
        outcomes: list[Outcome] = []
        for contender in contenders[: page.most]:
            outcomes.append(page.outcome(name, contender, compete, world, contender, SEEDS))
            page.put(name, lines(page, outcomes))
        return lines(page, outcomes)

    def lines(page: Page, outcomes: Sequence[Outcome]) -> list[str]:
        metric = {"auc": "AUC"}.get(world.metric, world.metric)
        drawn = dots(
            [
                (named(o), Mark(statistics.mean(o.scores), deviation(o), hollow=o.contender.holds != "proved"))
                for o in outcomes
                if not o.refused
            ],
            title,
            f"{metric}, {len(SEEDS)} seeds; hollow: epsilon 4 is not proved for a person",
        )
        columns = ("method", "epsilon 4 is", "score", "proved epsilon", "as published", "settings")
        head = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        return [
            *page.picture(name, title, drawn),
            *head,
            *(row(outcome) for outcome in outcomes),
            "",
            *rivals(outcomes),
        ]

    return part


def groups(page: Page) -> list[str]:
    """Largest groups and distinct subjects of all batches of a run, as figures 1c and 1d of [SubjectDP-2] count
    them."""
    lines: list[str] = []
    few = next(contender for contender in FEW_CONTENDERS if contender.label == "higrad")
    worlds = {"groups": ("539 writers", WRITERS, HIGRAD), "groups-few": ("54 writers", FEW, few)}
    for name, (who, world, contender) in worlds.items():
        plan = planned(world, contender, {"clip": 0.5, "train.rounds": 40}, SEEDS[0])
        largest, distinct = zip(*_batches(simulated(plan, people_of(world, plan)), plan.rounds), strict=True)
        for what, counts, across in (
            ("largest", largest, "records of one writer in a batch, at most"),
            ("distinct", distinct, "different writers in a batch"),
        ):
            title = f"{len(counts):,} batches of {who}: {across}"
            drawn = plots.bars(*_histogram(counts), title, across, "batches")
            lines += page.picture(f"{name}-{what}", title, drawn)
        mean = statistics.mean(largest), statistics.mean(distinct)
        lines += [f"{who}: on average {mean[0]:.1f} records of the same writer at most, {mean[1]:.0f} writers.", ""]
    return lines


def skew(page: Page) -> list[str]:
    """Figure 2: a person's records ever more in one silo, settings as chosen on the even spread."""
    shown = (FOR_DIGITS, HIGRAD, HIGRAD_PUBLISHED, GROUP_PUBLISHED)
    even = [page.outcome("writers", one, compete, WRITERS, one, SEEDS) for one in shown]
    columns: list[list[Outcome]] = []
    for a in SKEWS:
        spread = {"data.silos": {"assign": "power", "count": 16, "alpha": float(a)}}
        world = World(WRITERS.file, WRITERS.metric, changes=spread)
        column = []
        for outcome in even:
            if outcome.refused:
                continue
            shorter = replace(outcome.contender, changes={**outcome.contender.changes, "train.rounds": 30})
            column.append(page.outcome(f"skew {a}", shorter, repeat, world, shorter, outcome.chosen, SEEDS))
        columns.append(column)
        page.put("skew", skewed(page, columns))
    return skewed(page, columns)


def skewed(page: Page, columns: Sequence[Sequence[Outcome]]) -> list[str]:
    """Table and picture of the spreads so far, a column for each."""
    places = [str(a) for a in SKEWS[: len(columns)]]
    found = list(zip(*columns, strict=True))  # by contender
    tracks = [
        plots.Track(named(own[0]), style, [statistics.mean(o.scores) for o in own], [deviation(o) for o in own])
        for style, own in zip(RUN_STYLES, found, strict=False)
    ]
    rows = [f"| {named(own[0], code=True)} | " + " | ".join(score(o) for o in own) + " |" for own in found]
    title = "Accuracy where a writer's digits lie unevenly over 16 silos"
    drawn = plots.lines(places, tracks, title, "a of the power law (1: evenly)", "accuracy")
    head = ["| method | " + " | ".join(f"a = {a}" for a in places) + " |", "|---|" + "---|" * len(places)]
    return [*page.picture("skew", title, drawn), *head, *rows, ""]


CNN = World(HERE / "writers.toml", "accuracy", changes={"model.name": "cnn", "train.rounds": 30})
PLAYS = World(HERE / "shakespeare.toml", "accuracy")
# networks: a quarter of the people in a round, and fewer choices
LARGE_CONTENDERS = (
    replace(FEDAVG, grid={"local_learning_rate": (0.1, 0.5)}, changes={**PLAIN, "train.rounds": 5}),
    Contender(
        "subject-sgd",
        "proved",
        {"name": "subject-sgd", "subject_sample_rate": 0.25, **TARGET},
        {"clip": (0.1, 0.5), "train.server_learning_rate": (2.0,)},
        SUBJECT,
    ),
    in_batches(
        "higrad",
        "proved",
        SUBJECT,
        {**LOCAL, "train.rounds": (10,), "privacy.max_records_per_subject_and_silo": (5,)},
    ),
    in_batches("higrad", "as published", PUBLISHED, {**LOCAL, "train.rounds": (30,)}),
    in_batches(
        "local-record", "proved, for a record", {"privacy.unit": "record", **NO_CAPS}, {**LOCAL, "train.rounds": (30,)}
    ),
)
# a recurrent network learns slowly, and a run takes minutes: smaller batches, larger steps, no choice but the clip
PLAYS_CONTENDERS = (
    replace(
        FEDAVG,
        method={"name": "fedavg", "batch_size": 16},
        grid={"local_learning_rate": (3.0,)},
        changes={**PLAIN, "train.rounds": 10},
    ),
    *(
        replace(one, grid={name: values[-1:] for name, values in one.grid.items()} | {"clip": one.grid["clip"]})
        for one in LARGE_CONTENDERS[1:]
    ),
)
FEW_CONTENDERS = (
    FEDAVG,
    SUBJECT_SGD,
    *(
        replace(c, method={**c.method, "sample_rate": 0.1})
        for c in (HIGRAD, HIGRAD_PUBLISHED, GROUP_PUBLISHED, OF_A_RECORD)
    ),
)

PARTS: dict[str, Callable[[Page], list[str]]] = {
    "writers": comparison(
        "writers",
        "MNIST by 539 writers, 16 silos: accuracy on writers never seen",
        WRITERS,
        [FOR_DIGITS if contender is SUBJECT_SGD else contender for contender in ALL],
    ),
    "randhie": comparison(
        "randhie", "RAND HIE, 6 sites: AUC on people never seen", World(HERE / "randhie.toml", "auc"), ALL
    ),
    "insteval": comparison(
        "insteval", "InstEval, 14 departments: AUC on students never seen", World(HERE / "insteval.toml", "auc"), ALL
    ),
    "diabetes130": comparison(
        "diabetes130",
        "Diabetes 130, 8 specialties: AUC on patients never seen",
        World(HERE / "diabetes130.toml", "auc"),
        ALL,
    ),
    "groups": groups,
    "skew": skew,
    "few": comparison("few", "54 writers instead of 539: accuracy on writers never seen", FEW, FEW_CONTENDERS),
    "cnn": comparison("cnn", "MNIST by 539 writers, CNN: accuracy on writers never seen", CNN, LARGE_CONTENDERS),
    "shakespeare": comparison(
        "shakespeare", "Shakespeare, LSTM: accuracy on characters of plays never seen", PLAYS, PLAYS_CONTENDERS
    ),
}


# -- numbers in words


def named(outcome: Outcome, code: bool = False) -> str:
    contender = outcome.contender
    label = f"`{contender.label}`" if code else contender.label
    return label if contender.holds in ("none", "proved") else f"{label} ({contender.holds})"


def deviation(outcome: Outcome) -> float:
    return statistics.stdev(outcome.scores) if len(outcome.scores) > 1 else 0.0


def rivals(outcomes: Sequence[Outcome]) -> list[str]:
    """The two that are to be compared at equal proved epsilon, seed by seed: same split, same model."""
    proved = {o.contender.label: o.scores for o in outcomes if o.contender.holds == "proved" and not o.refused}
    if not {"subject-sgd", "higrad"} <= proved.keys():
        return []
    differences = [ours - theirs for ours, theirs in zip(proved["subject-sgd"], proved["higrad"], strict=True)]
    listed = ", ".join(f"{difference:+.4f}" for difference in differences)
    return [f"`subject-sgd` minus `higrad` at equal proved epsilon, seed by seed: {listed}.", ""]


def score(outcome: Outcome) -> str:
    return f"{statistics.mean(outcome.scores):.3f} ± {deviation(outcome):.3f}"


def row(outcome: Outcome) -> str:
    first = f"| `{outcome.contender.label}` | {outcome.contender.holds} |"
    if outcome.refused:
        return f"{first} not run: {outcome.refused} | | | |"
    proved = "infinity" if math.isinf(outcome.proved) else f"{outcome.proved:.2f} ({outcome.unit})"
    published = "–" if outcome.published is None else f"{outcome.published:.2f}"
    settings = ", ".join(f"{key.split('.')[-1]} {value:g}" for key, value in outcome.chosen.items())
    return f"{first} {score(outcome)} | {proved} | {published} | {settings} |"


def _batches(simulation: object, rounds: int) -> Iterator[tuple[int, int]]:
    """Of every batch of a run, how many records one subject has at most, and how many subjects there are."""
    subject = simulation.federation.train.subject
    for number in range(1, rounds + 1):
        for group in (group for lane in simulation.work.draw(number) for group in lane):
            drawn = group.batches
            for records, offsets, steps in zip(drawn.records, drawn.offsets, drawn.steps, strict=True):
                for batch in np.split(records[: offsets[steps]], offsets[1:steps]) if steps else ():
                    counts = np.unique(subject[batch], return_counts=True)[1]
                    yield int(counts.max(initial=0)), len(counts)


def _histogram(counts: Sequence[int]) -> tuple[list[str], list[float]]:
    """One bar per number where there are few, else per equal step."""
    low, high = min(counts), max(counts)
    step = max(1, math.ceil((high - low + 1) / 20))
    found = Counter((count - low) // step for count in counts)
    starts = range(low, high + 1, step)
    names = [str(start) if step == 1 else f"{start}–{start + step - 1}" for start in starts]
    return names, [float(found[place]) for place in range(len(starts))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--found", type=Path, help="a file that keeps what was found, to go on after an interruption")
    parser.add_argument("--most", type=int, help="only so many methods of every table, the first ones")
    options = parser.parse_args()
    page = Page(options.page, options.found, options.most)
    for name in options.only or PARTS:
        lines = PARTS[name](page)
        page.put(name, lines)
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
