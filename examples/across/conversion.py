"""Figure 2 of [ULDP-FL]: what protection of single records says about people with k records. No training.

The Gaussian mechanism with sigma 5 and rate .01, 10^5 steps, delta 1e-5, as in the paper, for k = 1 … 64 records:
the paper's conversion by Renyi divergences (Lemma 6), by normal DP (Lemma 5), and what holds for k records directly,
by the mixture of Gaussians (specification 4.2).
"""

from __future__ import annotations

from pathlib import Path

from research.conversions import as_published_group_dp
from research.plots import Curve, Panel, curves
from tacit.privacy import account
from tacit.privacy.accounting.as_published import as_published_uldp_group
from tacit.privacy.proofs.subject_events import summed_records
from tacit.report import words
from tacit.report.page import RUN_STYLES

SIGMA, RATE, STEPS, DELTA = 5.0, 0.01, 100_000, 1e-5
SIZES = (1, 2, 4, 8, 16, 32, 64)


def conversion(picture: Path, page: Path) -> list[str]:
    """The section of the page; its picture is written to ``picture``."""
    published = {
        "by Rényi divergences, as published": [as_published_uldp_group(k, RATE, SIGMA, STEPS, DELTA) for k in SIZES],
        "by normal DP, as published": [as_published_group_dp(k, RATE, SIGMA, STEPS, DELTA) for k in SIZES],
    }
    proved = {"proved directly": [account(summed_records(RATE, k, SIGMA, STEPS), DELTA).epsilon for k in SIZES]}
    shown = published | proved
    lines = [Curve(name, look, SIZES, values) for (name, values), look in zip(shown.items(), RUN_STYLES, strict=False)]
    panel = Panel("Epsilon for a person with k records", "k", lines, log_x=True, log_y=True)
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(curves([panel], "Epsilon over the number of records k."), encoding="utf-8")
    rows = [["k", *map(str, SIZES)], ["---"] * (len(SIZES) + 1)]
    rows += [[name, *map(words.published_epsilon, values)] for name, values in published.items()]
    rows += [[name, *map(words.epsilon, values)] for name, values in proved.items()]
    shown = f"![Group-privacy conversion (figure 2)]({picture.relative_to(page.parent).as_posix()})"
    return [shown, "", *(f"| {' | '.join(row)} |" for row in rows), ""]
