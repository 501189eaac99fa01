"""Tables that differ in one unit: made to be the worst for a bound, and the changes that neighbouring data sets differ
by.

Every record of the table gives a gradient far beyond the clip, so that all contributions are clipped. Within a subject,
within a silo and over silos one record outweighs all others, which pull the other way: taking it out turns the clipped
vector around. One column has many categories of which the table uses one: the parameters of the others see noise alone,
so that the noise that is really in a release is measured in the release itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tacit.methods import METHODS

SILOS = ("north", "south", "west")
CAP = 3
CLIP = 1e-3
# first and last in every order of identifiers, and one whose parts in different silos pull different ways
FIRST, DIVIDED, LAST = "aa", "ab", "zz"
TARGETS = (FIRST, DIVIDED, LAST)
# how much the records of a target weigh, and in which direction those in each silo pull
_WEIGHT = {FIRST: 100.0, DIVIDED: 10.0, LAST: 3.0}
_SIGN = {FIRST: (1, 1, 1), DIVIDED: (-1, -1, 1), LAST: (1, 1, 1)}
# what their other records weigh beside the first: against it, or all alike
_REST = {FIRST: -0.1, DIVIDED: -0.1, LAST: 1.0}


def table(*, records: int = CAP + 1, targets: Sequence[str] = TARGETS, others: int = 24) -> pd.DataFrame:
    """The worst table: ``targets`` have ``records`` records in every silo, others two in one silo or in two."""
    rng = np.random.default_rng(1)
    rows: list[tuple[str, str, float, float]] = []
    for person in targets:
        for sign, silo in zip(_SIGN[person], SILOS, strict=True):
            first = sign * _WEIGHT[person]
            rows += [(person, silo, 1.0, first if record == 0 else first * _REST[person]) for record in range(records)]
    for number in range(others):
        for silo in (SILOS[number % 3], *((SILOS[(number + 1) % 3],) if number % 2 else ())):
            rows += [(f"m{number:02d}", silo, float(rng.uniform(-1, 1)), -1.0) for _ in range(2)]
    return _made(rows)


def confined() -> pd.DataFrame:
    """The same with every subject in one silo."""
    made = table()
    home = {person: SILOS[number % 3] for number, person in enumerate(sorted(made["person"].unique()))}
    home |= {FIRST: SILOS[0], DIVIDED: SILOS[1], LAST: SILOS[0]}
    return made.assign(site=made["person"].map(home))


def alone(person: str) -> pd.DataFrame:
    """One target in every silo; what all others contribute is nothing, so that their coins do not matter."""
    made = table(targets=(person,))
    silent = made["person"] != person
    return made.assign(y=made["y"].mask(silent, 0.0), x=made["x"].mask(silent, 0.0))


def crowd(people: int) -> pd.DataFrame:
    """Subjects of very different weight who pull different ways: where two of them are taken for one, taking out the
    heavier one turns what is left around."""
    rows = [
        (f"q{number:02d}", silo, 1.0, (-1.0) ** (number // 2) * 2.0**number)
        for number in range(people)
        for silo in SILOS
    ]
    return _made(rows)


# How many records a running sum adds at a time, and how many there are in all.
CHUNK = 32
MANY = 100_000


def many() -> pd.DataFrame:
    """Records at rounding edges, in the order of the table: all of one subject. In single precision, a running sum over
    chunks of them drops almost half a unit in the last place with every chunk; without the first record all chunks
    shift by one, and it gains as much.

    No record reaches the clip of 1: a record adds twice its label to the sum, as it is.
    """
    chunks, unit = MANY // CHUNK, 2.0**-8  # in the last place of sums from 2^15 to 2^16
    edge = np.floor(CHUNK * 0.65 / unit) * unit + 0.45 * unit
    step = 0.1 * unit * (np.arange(chunks) % 100)
    labels = np.full((chunks, CHUNK), edge / CHUNK)
    labels[:, 0] += step
    labels[:, 1] -= step
    rows = [(FIRST, SILOS[0], 0.0, float(y / 2)) for y in labels.ravel()]
    return _made([*rows, *((f"s{number}", SILOS[number % 3], 0.0, 0.0) for number in range(6))])


def _made(rows: list[tuple[str, str, float, float]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["person", "site", "x", "y"]).assign(code="c0")


def experiment(method: dict[str, Any], levels: int, rounds: int, **sections: Any) -> dict[str, Any]:
    """An experiment on such a table: everything public is declared, and the model all but stands still, so that all
    rounds begin alike. ``sections`` add to those of the experiment."""
    made: dict[str, Any] = {
        "seed": SEED,
        "data": {
            "label": "y",
            "task": "real",
            "seed": 3,
            "test_fraction": 0.2,
            "subjects": {"column": "person", "count": 40},
            "silos": {"column": "site", "count": len(SILOS)},
            "records_per_silo": 60,
            "numeric": {"x": {"mean": 0, "scale": 1}},
            "categorical": {"code": [f"c{k}" for k in range(levels)]},
        },
        "model": {"name": "linear"},
        "method": dict(method),
        "train": {"rounds": rounds},
        "privacy": {"max_records_per_subject_and_silo": CAP},
    }
    if rounds > 1:
        serverless = METHODS[method["name"]].info.serverless
        made["method" if serverless else "train"] |= {f"{'local' if serverless else 'server'}_learning_rate": STEP}
    for name, section in sections.items():
        made[name] = made.get(name, {}) | section
    made["privacy"] = {key: value for key, value in made["privacy"].items() if value is not None}
    return made


# after a step of this rate the next round begins where the last one did
STEP = 1e-9
SEED = 7

Change = Callable[[pd.DataFrame], pd.DataFrame]


def changes(
    unit: str, relation: str, free: Sequence[str], targets: Sequence[str] = TARGETS, fades: bool = False
) -> Iterator[Change]:
    """Ways in which a neighbouring table differs in one unit, in the silos that are ``free`` to differ: a view that
    holds records knows its own. ``fades``: what replaces a unit may also be below every clip."""
    whose: list[tuple[str, ...]] = [(person,) for person in targets]
    if unit == "subject":
        for (person,) in whose:
            yield from _changed(lambda made, p=person: (made["person"] == p) & made["site"].isin(free), relation, fades)
    elif unit == "record":
        for (person,) in whose:
            for silo in free[:2]:
                yield from _changed(lambda made, p=person, s=silo: _first(made, p, s), relation, fades)
    else:
        for silo in free:
            yield from _changed(lambda made, s=silo: made["site"] == s, relation, fades, silent=True)


def _first(made: pd.DataFrame, person: str, silo: str) -> pd.Series:
    """The record of a person in a silo that outweighs its others there."""
    there = (made["person"] == person) & (made["site"] == silo)
    return there & ~there.duplicated()


def _changed(
    which: Callable[[pd.DataFrame], pd.Series], relation: str, fades: bool, silent: bool = False
) -> Iterator[Change]:
    def removed(made: pd.DataFrame) -> pd.DataFrame:
        return made[~which(made)].reset_index(drop=True)

    def silenced(made: pd.DataFrame) -> pd.DataFrame:
        """A silo must have records: those whose gradient is not finite count as zero, whatever the model."""
        return made.assign(y=made["y"].mask(which(made), 3e38))

    def replaced(made: pd.DataFrame) -> pd.DataFrame:
        return made.assign(y=made["y"].mask(which(made), -made["y"]))

    def faded(made: pd.DataFrame) -> pd.DataFrame:
        there = which(made)
        return made.assign(x=made["x"].mask(there, 0.0), y=made["y"].mask(there, 0.0))

    if relation == "zero-out":
        yield silenced if silent else removed
    else:
        yield replaced
        if fades:
            yield faded
