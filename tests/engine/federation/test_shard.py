"""A silo's table: pseudonyms, columns under other names, and who is held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit.config import plan as planned
from tacit.crypto import Secret
from tacit.engine.federation.request import received, travelling
from tacit.engine.federation.shard import load_shard, pseudonyms, read_silo_data
from tacit.errors import UserError

SECRET = Secret(bytes(range(32)))
EXPERIMENT = """
[data]
label = "ill"
subjects = { column = "patient", count = 500 }
silos = { count = 2 }
test_fraction = 0.25
numeric = { age = { mean = 50, scale = 20 } }

[method]
name = "uldp-avg"
noise_multiplier = 5.0

[privacy]
max_records_per_subject_and_silo = 2
"""


@pytest.fixture(scope="module")
def plan():
    return received(EXPERIMENT)


def table(people: range, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    who = np.repeat(np.array(people), 3)
    return pd.DataFrame({"patient": who, "age": rng.uniform(0, 100, len(who)), "ill": rng.integers(0, 2, len(who))})


def written(folder: Path, name: str, frame: pd.DataFrame, text: str = "") -> Path:
    frame.to_csv(folder / f"{name}.csv", index=False)
    file = folder / f"{name}.toml"
    file.write_text(f'path = "{name}.csv"\n{text}')
    return file


def test_the_same_person_has_the_same_number_in_every_silo_and_nobody_else_can_tell(plan, tmp_path):
    north = load_shard(plan, "north", read_silo_data(written(tmp_path, "north", table(range(60), 1))), SECRET)
    south = load_shard(plan, "south", read_silo_data(written(tmp_path, "south", table(range(30, 90), 2))), SECRET)
    numbers = pseudonyms(pd.Series(range(90), name="patient"), SECRET) % np.uint64(500)
    shared = set(numbers[30:60].tolist())
    train = [set(shard.train.subject.tolist()) for shard in (north, south)]
    test = [set(shard.test.subject.tolist()) for shard in (north, south)]
    assert train[0] & train[1]
    assert (train[0] | test[0]) & shared == shared
    assert not (pseudonyms(pd.Series(range(90)), Secret(bytes(32))) % np.uint64(500) == numbers).all()
    # a person is held out everywhere or nowhere
    distinct = {n for n in shared if (numbers == n).sum() == 1}
    assert all((n in test[0]) == (n in test[1]) for n in distinct)


def test_a_number_means_the_same_however_it_is_written():
    forms = [pd.Series([7, 12]), pd.Series([7.0, 12.0]), pd.Series(["7", "12"])]
    first, *others = (pseudonyms(form, SECRET).tolist() for form in forms)
    assert all(first == other for other in others)
    assert pseudonyms(pd.Series(["07"]), SECRET)[0] != first[0]


def test_caps_hold_and_rows_are_grouped_by_person(plan, tmp_path):
    shard = load_shard(plan, "north", read_silo_data(written(tmp_path, "north", table(range(40), 3))), SECRET)
    _, counts = np.unique(shard.train.subject, return_counts=True)
    assert counts.max() <= 2
    assert (np.diff(shard.train.subject) >= 0).all()
    assert shard.silo_names == ("north",)
    assert shard.subject_count == 500


def test_columns_may_have_other_names_here(plan, tmp_path):
    theirs = table(range(40), 4)
    ours = theirs.rename(columns={"patient": "ID", "age": "years", "ill": "outcome"}).assign(age="not a number")
    names = '[columns]\npatient = "ID"\nage = "years"\nill = "outcome"\n'
    one = load_shard(plan, "north", read_silo_data(written(tmp_path, "theirs", theirs)), SECRET)
    two = load_shard(plan, "north", read_silo_data(written(tmp_path, "ours", ours, names)), SECRET)
    np.testing.assert_array_equal(one.train.features, two.train.features)
    np.testing.assert_array_equal(one.train.subject, two.train.subject)


def test_what_is_missing_is_named(plan, tmp_path):
    with pytest.raises(UserError, match="no column 'patient'"):
        load_shard(
            plan, "n", read_silo_data(written(tmp_path, "n", table(range(9), 1).drop(columns="patient"))), SECRET
        )
    wrong = written(tmp_path, "m", table(range(9), 1), '[columns]\npatient = "nobody"\n')
    with pytest.raises(UserError, match="no column 'nobody'"):
        load_shard(plan, "n", read_silo_data(wrong), SECRET)
    gaps = table(range(9), 1).astype({"patient": object})
    gaps.loc[3, "patient"] = None
    with pytest.raises(UserError, match="missing in 1 rows"):
        load_shard(plan, "n", read_silo_data(written(tmp_path, "g", gaps)), SECRET)


def test_a_silo_in_which_nobody_is_held_out_is_ordinary(plan, tmp_path):
    kept = [p for p in range(200) if p not in _held_out(plan, range(200))][:3]
    frame = table(range(200), 5)
    shard = load_shard(plan, "n", read_silo_data(written(tmp_path, "n", frame[frame.patient.isin(kept)])), SECRET)
    assert len(shard.test) == 0
    assert len(shard.train) == 6


def _held_out(plan, people: range) -> set[int]:
    from tacit.data.arrange import drawn

    mask = drawn(pseudonyms(pd.Series(people), SECRET), plan.data.test_fraction, 0)
    return {person for person, out in zip(people, mask, strict=True) if out}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ('[model]\nname = "somewhere.module:factory"', "model.name"),
        ('[model]\ninit_from = "/etc/passwd"', "model.init_from"),
        ('[evaluation]\ndata = "/etc/passwd"', "evaluation.data"),
        ('[model]\nname = "/tmp/module:factory"', "model.name"),
        ('[exchange]\nname = "shuffled"', "exchange.name"),
    ],
)
def test_a_request_that_names_a_file_or_code_is_refused_before_it_is_looked_at(change, named):
    with pytest.raises(UserError) as caught:
        received(EXPERIMENT + change)
    assert caught.value.field == named


def test_what_travels_has_no_paths_and_the_noise_that_was_solved_for(tmp_path):
    content = {
        "data": {
            "path": str(tmp_path / "secret place.csv"),
            "label": "ill",
            "subjects": {"column": "patient", "count": 500},
            "silos": {"column": "clinic", "count": 2},
            "numeric": {"age": {"mean": 50, "scale": 20}},
        },
        "method": {"name": "uldp-avg", "target_epsilon": 4.0},
        "train": {"rounds": 5},
        "privacy": {"budget_file": str(tmp_path / "budget"), "max_silos_per_subject": 1},
    }
    before = planned(content)
    text = travelling(before)
    assert str(tmp_path) not in text
    after = received(text)
    assert after.method.noise_multiplier == before.method.noise_multiplier
    assert [line.epsilon for line in after.guarantees()] == [line.epsilon for line in before.guarantees()]
    assert travelling(after) == text
