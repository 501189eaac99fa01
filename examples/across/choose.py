"""Settings for the figures of [ULDP-FL], chosen on training people only.

    TACIT_DATA=… python examples/across/choose.py                              all of them
    TACIT_DATA=… python examples/across/choose.py --data creditcard            those of a data set
    TACIT_DATA=… python examples/across/choose.py --data creditcard --only uldp-avg-w

A fifth of the training people is held out, with a seed that no figure uses; held-out records are never looked at. Every
setting of a method's grid (contenders.py) is judged there; the best goes into settings.json, with what all of them
scored.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from contenders import METRIC, published

from research.study import Contender, judged
from tacit.errors import TacitError

HERE = Path(__file__).parent
SETTINGS = HERE / "settings.json"
# Chosen once: all group sizes share what is best with all records; other weights share what is best for record weights,
# so that weights are compared and nothing else.
SHARED = dict.fromkeys(("uldp-avg", "capped weights"), "uldp-avg-w") | {
    f"uldp-group-{size}": "uldp-group-max" for size in (2, 8, "median")
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=METRIC, action="append")
    parser.add_argument("--only", action="append", help="contenders, by label")
    options = parser.parse_args()
    for data in options.data or METRIC:
        for contender in published(data):
            wanted = options.only is None or contender.label in options.only
            if wanted and contender.grid and chosen_as(contender.label) == contender.label:
                keep(data, contender.label, best(data, contender))


def chosen_as(label: str) -> str:
    """The contender whose settings are used."""
    return SHARED.get(label, label)


def best(data: str, contender: Contender) -> dict[str, Any]:
    """The best setting of a contender, and what every setting scored."""
    metric, begun = METRIC[data], time.monotonic()
    try:
        scored = list(judged(HERE / f"{data}.toml", contender, metric))
    except TacitError as error:
        return {"refused": str(error)}
    found = max(scored, key=lambda pair: pair[0])[1]
    print(f"{data}, {contender.label}: {found}, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return {"settings": found, "judged": [{**settings, metric: abs(score)} for score, settings in scored]}


def keep(data: str, label: str, found: dict[str, Any]) -> None:
    content = json.loads(SETTINGS.read_text(encoding="utf-8")) if SETTINGS.is_file() else {}
    content.setdefault(data, {})[label] = found
    SETTINGS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def settings_of(data: str, contender: Contender) -> dict[str, Any]:
    """What was chosen for a contender; nothing for one that cannot run, or that has nothing to choose."""
    known = json.loads(SETTINGS.read_text(encoding="utf-8")).get(data, {})
    chosen = known.get(chosen_as(contender.label))
    if chosen is None and contender.grid:
        raise SystemExit(f"nothing is chosen for {contender.label} on {data} yet: first run choose.py --data {data}")
    found: dict[str, Any] = (chosen or {}).get("settings", {})
    return found


if __name__ == "__main__":
    main()
