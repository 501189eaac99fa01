"""How we attack ourselves: one command, the tables and pictures of docs/audit.md.

    python examples/audit/run.py --only record-rate        one published accounting that does not hold, printed
    TACIT_DATA=… python examples/audit/run.py docs/audit.md   everything: tables into the page, pictures beside it

The digits need the folder ``mnist`` in TACIT_DATA; without it their picture is left as it is.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import studies
import tacit
from research.exhibits import EXHIBITS, Exhibit
from research.plots import Curve, Mark, Marks, Panel, curves, images, rows
from tacit.auditing import Audit, audit
from tacit.privacy import Randomness
from tacit.report.audit_page import AUDIT, lower
from tacit.report.page import RUN_STYLES
from tacit.report.words import epsilon as upper

SEED = 1
BEGIN, END = "<!-- {}: written by examples/audit/run.py -->", "<!-- /{} -->"


def exhibits(names: list[str], folder: Path | None) -> str:
    """Published accountings beside attacks."""
    found = [EXHIBITS[name](Randomness.from_seed(SEED)) for name in names]
    if folder is not None:
        _save(folder / "published.svg", _exhibit_scale(found))
    head = "| what is published | case | attack | published | at least | proved |\n|---|---|---|---|---|---|\n"
    return head + "\n".join(
        f"| {one.name} | {one.setting} | {one.attack} | {one.published:.2f} | **{lower(one.at_least)}** "
        f"| {upper(one.proved)} |"
        for one in found
    )


def _exhibit_scale(found: list[Exhibit]) -> str:
    series = {
        "published": Marks(AUDIT["published"], [Mark(one.published) for one in found]),
        "at least": Marks(AUDIT["at least"], [Mark(one.at_least, wrong=one.at_least > one.published) for one in found]),
        "proved, at most": Marks(AUDIT["proved"], [Mark(one.proved) for one in found]),
    }
    return rows([one.name for one in found], series, "epsilon at delta 1e-5 (logarithmic)", log=True)


def demo(folder: Path | None) -> str:
    """The built-in experiment, attacked."""
    begun = time.process_time()
    found = audit(tacit.plan(Path(str(files("tacit") / "demo.toml")), [f"seed={SEED}"]))
    if folder is not None:
        _save(folder / "demo.svg", _demo_scale(found))
    head = "| canaries | seen | right guesses | at least | on a Gaussian curve | estimate | proved |\n"
    table = (
        head
        + "|---|---|---|---|---|---|---|\n"
        + "\n".join(
            f"| {line.canaries:,} {line.kind} | {line.seen} | {line.right} of {line.guesses} | {lower(line.epsilon)} "
            f"| {lower(line.fdp_epsilon)} | {lower(line.estimate)} | {upper(line.proved)} |"
            for line in found.canaries
        )
    )
    head = "| the method alone | runs | at least | on a Gaussian curve | proved, one round | hits | allowed |\n"
    alone = (
        head
        + "|---|---|---|---|---|---|---|\n"
        + "\n".join(
            f"| {line.view} | {line.found.runs:,} | {lower(line.found.epsilon)} | {lower(line.found.gaussian_epsilon)} "
            f"| {upper(line.proved)} | {100 * line.found.hits:.1f} % | {100 * line.found.most_hits:.1f} % |"
            for line in found.mechanism
        )
    )
    verdict = "Something was **refuted**." if found.refuted else "Nothing was refuted."
    return f"{table}\n\n{alone}\n\n{verdict} {time.process_time() - begun:.0f} seconds of processor time."


def _demo_scale(found: Audit) -> str:
    lines_ = found.canaries
    series = {
        "at least": Marks(AUDIT["at least"], [Mark(line.epsilon, wrong=line.refuted) for line in lines_]),
        "on a Gaussian curve": Marks(AUDIT["curve"], [Mark(line.fdp_epsilon, wrong=line.refuted) for line in lines_]),
        "estimate": Marks(AUDIT["estimate"], [Mark(line.estimate) for line in lines_]),
        "proved, at most": Marks(AUDIT["proved"], [Mark(line.proved) for line in lines_]),
    }
    names = [f"{line.kind} canaries, {line.seen}" for line in lines_]
    return rows(names, series, "epsilon at delta 1e-5", from_zero=True)


def methods(folder: Path | None) -> str:
    """Every private method alone, many times."""
    rows_ = ["| method | seen by | proved | largest of 20 lower bounds | refuted | hardly any noise |"]
    rows_.append("|---|---|---|---|---|---|")
    for one in studies.every_method():
        bounds = f"{upper(one.proved)} | {lower(one.at_least)} | {one.refuted} of {studies.SEEDS}"
        rows_.append(f"| {one.name} | {one.view} | {bounds} | {'caught' if one.caught else 'not caught'} |")
        print(f"{rows_[-1]} {one.seconds:.0f} s", file=sys.stderr, flush=True)
    return "\n".join(rows_)


def members(folder: Path | None) -> str:
    """Who was in the data?"""
    found = studies.who_was_there()
    if folder is not None:
        ways = list(next(iter(found.values())))
        series = {
            name.split(" (")[0]: Marks(style, [Mark(scores[way].auc) for way in ways])
            for style, (name, scores) in zip(RUN_STYLES, found.items(), strict=False)
        }
        _save(folder / "membership.svg", rows(ways, series, "area under the curve (0.5 is a coin)"))
    head = "| trained with | " + " | ".join(next(iter(found.values()))) + " |\n|---|---|---|---|---|\n"
    return head + "\n".join(
        f"| {name} | "
        + " | ".join(f"{one.auc:.2f}, {100 * one.found_at_one_percent:.0f} %" for one in scores.values())
        + " |"
        for name, scores in found.items()
    )


def others(folder: Path | None) -> str:
    """Secrets of one person: from a mean, from two releases, from many sums."""
    epsilons, shares = studies.secret_sign()
    noises, back, private, left = studies.subset_sums()
    if folder is not None:
        curve = Curve("share of bits that come back", RUN_STYLES[0], noises, back)
        panel = Panel("Share of bits that come back", "noise on every sum", [curve])
        _save(folder / "subset-sums.svg", curves([panel], "Share of bits that come back over the noise on every sum"))
    rows_ = [
        ("one model, which of two values a person has", f"epsilon {upper(epsilon)}", f"right in {100 * share:.0f} %")
        for epsilon, share in zip(epsilons, shares, strict=True)
    ]
    rows_ += [
        ("two means, a person's income", name, f"off by {error:,.1f} thousand")
        for name, error in studies.two_releases()
    ]
    rows_ += [
        ("800 sums over 200 people, one bit each", f"noise {noise:g}", f"{100 * share:.0f} % come back")
        for noise, share in zip(noises, back, strict=True)
        if noise in (0, 5, 14, 50)
    ]
    rows_.append(
        (
            "800 sums over 200 people, one bit each",
            f"epsilon 1, noise {private:.0f}",
            f"{100 * left:.0f} % come back",
        )
    )
    return "| attack | protection | result |\n|---|---|---|\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows_)


def digits(folder: Path | None) -> str:
    """What did the picture look like?"""
    if not os.environ.get("TACIT_DATA"):
        return ""
    columns, found = studies.digits()
    if folder is not None:
        _save(folder / "digits.svg", images(columns, found))
    return "Left: what was in the silo. Then: what comes back from what an onlooker sees."


PARTS: dict[str, Callable[[Path | None], str]] = {
    "demo": demo,
    "methods": methods,
    "published": lambda folder: exhibits(list(EXHIBITS), folder),
    "members": members,
    "digits": digits,
    "others": others,
}


def _save(file: Path, picture: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(picture, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--only", choices=[*PARTS, *EXHIBITS], action="append")
    options = parser.parse_args()
    folder = None if options.page is None else options.page.parent / "audit"
    for name in options.only or PARTS:
        begun = time.monotonic()
        written = exhibits([name], None) if name in EXHIBITS else PARTS[name](folder)
        print(written, flush=True)
        print(f"{name}: {math.ceil(time.monotonic() - begun)} s", file=sys.stderr, flush=True)
        if options.page is not None and written and name in PARTS:
            text = options.page.read_text(encoding="utf-8")
            begin, end = BEGIN.format(name), END.format(name)
            before, after = text.split(begin)[0], text.split(end)[1]
            options.page.write_text(f"{before}{begin}\n\n{written}\n\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
