"""All subject-level methods beside each other: one command, one page.

    TACIT_DATA=… python examples/subject/run.py docs/subject.md          writes the tables between the page's markers
    TACIT_DATA=… python examples/subject/run.py --only randhie           one data set, printed

For every data set: each method at *proved* epsilon 4 for a person (delta 1e-5), then those of the papers at their *own*
epsilon 4, with what is proved about that run beside it. Settings are chosen on training people (examples/study.py).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # study.py lies beside the folders of its comparisons

from study import Contender, Outcome, compete  # noqa: E402

SEEDS = (0, 1, 2)
EPSILON = 4.0
BEGIN, END = "<!-- subject: written by examples/subject/run.py -->", "<!-- /subject -->"

# file -> title, metric
DATA = {
    "writers": ("MNIST by 539 writers over 16 silos, model `edges`: accuracy on 297 writers never seen", "accuracy"),
    "randhie": ("RAND HIE, 6 sites, people in one site each: AUC on people never seen", "auc"),
    "insteval": ("InstEval, 14 departments, students in several: AUC on students never seen", "auc"),
    "diabetes130": ("Diabetes 130, 8 specialties, patients in up to 4: AUC on patients never seen", "auc"),
}

CLIPS, STEPS = (0.1, 0.5), (0.05, 0.5)
LOCAL = {"clip": (0.5,), "local_learning_rate": (0.1, 1.0)}
PLAIN = {"train.server_learning_rate": 1.0, "train.server_optimizer": "sgd"}
# two batches a round keep the number of batches, and so the noise of the papers' methods, low
BATCHES = {"sample_rate": 0.05, "batches_per_round": 2}


def contenders() -> list[tuple[str, Contender]]:
    """(which epsilon is 4, contender), in the order of the table."""
    target = {"target_epsilon": EPSILON}
    subject = {**PLAIN, "privacy.unit": "subject"}
    fedavg = {"name": "fedavg", "batch_size": 64, "local_learning_rate": 0.1}
    rows = [
        ("none", Contender("fedavg", fedavg, {}, {**PLAIN, "train.rounds": 20})),
        (
            "proved",
            Contender(
                "subject-sgd",
                {"name": "subject-sgd", **target},
                {"clip": CLIPS, "train.server_learning_rate": (2.0, 12.0)},
                {"privacy.unit": "subject"},
            ),
        ),
        (
            "proved",
            Contender(
                "uldp-avg",
                {"name": "uldp-avg", "local_epochs": 2, **target},
                {"clip": CLIPS, "local_learning_rate": (0.1, 1.0)},
                {"privacy.unit": "subject", "train.server_learning_rate": 30.0},
            ),
        ),
    ]
    for name in ("higrad", "local-group", "local-record", "user-ldp"):
        rows.append(("proved", Contender(name, {"name": name, **BATCHES, **target}, LOCAL, subject)))
    for name in ("central-group",):
        central = {"clip": (0.5,), "train.server_learning_rate": (0.5, 4.0)}
        rows.append(
            (
                "proved",
                Contender(name, {"name": name, "sample_rate": 0.05, **target}, central, {"privacy.unit": "subject"}),
            )
        )
    rows.append(("proved", Contender("pooled-dp-sgd", {"name": "pooled-dp-sgd", **BATCHES, **target}, LOCAL, subject)))
    published = {**subject, "privacy.target": "as-published"}
    for name in ("higrad", "user-ldp"):
        rows.append(("as published", Contender(name, {"name": name, **BATCHES, **target}, LOCAL, published)))
    varying = {"name": "local-group", "noise": "as-published", **BATCHES, **target}
    rows.append(("as published", Contender("local-group, noise by batch", varying, LOCAL, published)))
    record = {**PLAIN, "privacy.unit": "record"}
    rows.append(
        (
            "proved, for a record",
            Contender("local-record", {"name": "local-record", **BATCHES, **target}, LOCAL, record),
        )
    )
    return rows


def table(name: str, seeds: tuple[int, ...]) -> list[str]:
    title, metric = DATA[name]
    lines = [
        f"### {title}",
        "",
        "| method | epsilon 4 is | score | proved epsilon | as published | settings |",
        "|---|---|---|---|---|---|",
    ]
    for which, contender in contenders():
        begun = time.monotonic()
        outcome = compete(HERE / f"{name}.toml", contender, metric, seeds)
        lines.append(row(which, outcome))
        print(f"{name} {lines[-1]} {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return [*lines, ""]


def row(which: str, outcome: Outcome) -> str:
    if outcome.refused:
        return f"| `{outcome.label}` | {which} | not run: {outcome.refused} | | | |"
    spread = statistics.stdev(outcome.scores) if len(outcome.scores) > 1 else 0.0
    score = f"{statistics.mean(outcome.scores):.3f} ± {spread:.3f}"
    proved = "infinity" if math.isinf(outcome.proved) else f"{outcome.proved:.2f} ({outcome.unit})"
    published = "–" if outcome.published is None else f"{outcome.published:.2f}"
    settings = ", ".join(f"{key.split('.')[-1]} {value:g}" for key, value in (outcome.chosen or {}).items())
    return f"| `{outcome.label}` | {which} | {score} | {proved} | {published} | {settings} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--only", choices=DATA, action="append")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    options = parser.parse_args()
    lines: list[str] = []
    for name in options.only or DATA:
        lines += table(name, SEEDS[: options.seeds])
    print("\n".join(lines))
    if options.page is not None:
        text = options.page.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        options.page.write_text("\n".join([before + BEGIN, "", *lines, END + after]), encoding="utf-8")


if __name__ == "__main__":
    main()
