"""A silo's table: pseudonyms, columns under other names, and who is held out."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacit.crypto import Secret
from tacit.data.invalid_rows import FINEST
from tacit.errors import UserError
from tacit.federation.request import received, travelling
from tacit.federation.site.shard import Shard, load_shard, pseudonyms, read_silo_data
from tacit.planning.plan import Plan
from tacit.planning.plan import plan as planned
from tests.federation.worlds import travelled
from tests.refusals import refuses

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
    return read(EXPERIMENT)


def read(text: str) -> Plan:
    return received(travelled(text))


def table(people: range, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    who = np.repeat(np.array(people), 3)
    return pd.DataFrame({"patient": who, "age": rng.uniform(0, 100, len(who)), "ill": rng.integers(0, 2, len(who))})


def written(folder: Path, name: str, frame: pd.DataFrame, text: str = "", subjects: str = "patient") -> Path:
    frame.to_csv(folder / f"{name}.csv", index=False)
    file = folder / f"{name}.toml"
    file.write_text(f'path = "{name}.csv"\nsubjects = "{subjects}"\n{text}')
    return file


def shard_of(plan: Plan, name: str, file: Path) -> Shard:
    return load_shard(plan, name, read_silo_data(file), SECRET)


def test_the_same_person_has_the_same_number_in_every_silo_and_nobody_else_can_tell(plan, tmp_path):
    north = shard_of(plan, "north", written(tmp_path, "north", table(range(60), 1))).federation
    south = shard_of(plan, "south", written(tmp_path, "south", table(range(30, 90), 2))).federation
    numbers = pseudonyms(pd.Series(range(90), name="patient"), SECRET)
    shared = set(numbers[30:60].tolist())
    train = [set(shard.train.subject.tolist()) for shard in (north, south)]
    test = [set(shard.test.subject.tolist()) for shard in (north, south)]
    assert train[0] & train[1]
    assert (train[0] | test[0]) & shared == shared
    assert not (pseudonyms(pd.Series(range(90)), Secret(bytes(32))) == numbers).any()
    # a person is held out everywhere or nowhere
    assert all((n in test[0]) == (n in test[1]) for n in shared)


def test_a_number_means_the_same_however_it_is_written():
    forms = [pd.Series([7, 12]), pd.Series([7.0, 12.0]), pd.Series(["7", "12"])]
    first, *others = (pseudonyms(form, SECRET).tolist() for form in forms)
    assert all(first == other for other in others)
    assert pseudonyms(pd.Series(["07"]), SECRET)[0] != first[0]


def test_people_whose_identifiers_differ_by_zeros_of_a_fraction_are_two():
    people = pd.Series([f"1.{k}" for k in range(1, 31)])
    assert len(set(pseudonyms(people, SECRET).tolist())) == 30


def test_caps_hold_and_rows_are_grouped_by_person(plan, tmp_path):
    shard = shard_of(plan, "north", written(tmp_path, "north", table(range(40), 3))).federation
    _, counts = np.unique(shard.train.subject, return_counts=True)
    assert counts.max() <= 2
    assert (np.diff(shard.train.subject) >= 0).all()
    assert shard.silo_names == ("north",)
    assert shard.subject_count == 40


def test_columns_may_have_other_names_here(plan, tmp_path):
    theirs = table(range(40), 4)
    ours = theirs.rename(columns={"patient": "ID", "age": "years", "ill": "outcome"}).assign(age="not a number")
    names = '[columns]\npatient = "ID"\nage = "years"\nill = "outcome"\n'
    one = shard_of(plan, "north", written(tmp_path, "theirs", theirs)).federation
    two = shard_of(plan, "north", written(tmp_path, "ours", ours, names, "ID")).federation
    np.testing.assert_array_equal(one.train.features, two.train.features)
    np.testing.assert_array_equal(one.train.subject, two.train.subject)


def test_what_is_missing_is_named(plan, tmp_path):
    with refuses("unknown-name", "subjects", names=["patient"]):
        shard_of(plan, "n", written(tmp_path, "n", table(range(9), 1).drop(columns="patient")))
    wrong = written(tmp_path, "m", table(range(9), 1), '[columns]\npatient = "nobody"\n')
    with refuses("unknown-name", "columns.patient", names=["nobody"]):
        shard_of(plan, "n", wrong)


WIDE = EXPERIMENT.replace(
    "numeric = { age = { mean = 50, scale = 20 } }",
    'numeric = { age = { mean = 50, scale = 20 }, weight = { missing = 70 } }\ncategorical = { sex = ["f", "m"] }',
)
GOOD = {"patient": 1, "age": 40.0, "weight": 80.0, "sex": "f", "ill": 0}


def wide(rows: list[dict]) -> pd.DataFrame:
    return pd.DataFrame([{**GOOD, **row} for row in rows]).astype(object)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"age": None}, "age"),
        ({"age": "old"}, "age"),
        ({"age": np.inf}, "age"),
        ({"age": 1e300}, "age"),
        ({"weight": "heavy"}, "weight"),
        ({"weight": 1e39}, "weight"),
        ({"sex": "d"}, "sex"),
        ({"sex": None}, "sex"),
        ({"ill": 2}, "ill"),
        ({"ill": None}, "ill"),
        ({"patient": None}, "patient"),
    ],
)
def test_a_row_that_does_not_fit_is_left_out_and_counted(row, column, tmp_path):
    """To refuse the run would tell the requester that there is such a row."""
    file = written(tmp_path, "n", wide([{}, row, {"weight": None}]))
    shard = shard_of(read(WIDE), "n", file)
    assert (shard.rows, shard.left_out) == (3, {column: 1})
    kept = np.concatenate([shard.federation.train.features, shard.federation.test.features])
    assert len(kept) == 2
    assert np.isfinite(kept).all()


def test_gaps_that_may_be_filled_fit(tmp_path):
    centred = read(WIDE.replace("[data]", '[data]\nmissing = "center"'))
    frame = wide([{"age": None}, {"sex": None}, {"age": "old"}])
    shard = shard_of(centred, "n", written(tmp_path, "n", frame))
    assert shard.left_out == {"age": 1}


LABELS = {
    'label = "ill"\ntask = "real"': ([0.5, -3], [None, "x", np.inf, 1e39]),
    'label = "ill"\ntask = "multiclass"\nclasses = ["a", "b"]': (["a", "b"], ["c", None]),
    'label = { time = "weight", event = "ill" }': ([0, 1], [2, None, "x"]),
}


@pytest.mark.parametrize("label", LABELS)
def test_rows_whose_label_is_none_are_left_out(label, tmp_path):
    good, bad = LABELS[label]
    plan = read(EXPERIMENT.replace('label = "ill"', label) + '[model]\nname = "mlp"\n')
    frame = wide([{"ill": value} for value in (*good, *bad)])
    shard = shard_of(plan, "n", written(tmp_path, "n", frame))
    assert shard.left_out == {"ill": len(bad)}


def test_rows_without_a_time_are_left_out(tmp_path):
    timed = EXPERIMENT.replace('label = "ill"', 'label = { time = "weight", event = "ill" }')
    plan = read(timed + '[model]\nname = "mlp"\n')
    frame = wide([{"weight": time} for time in (1, 0, -2, None, np.inf, 1e-60)])
    shard = shard_of(plan, "n", written(tmp_path, "n", frame))
    assert shard.left_out == {"weight": 5}


CELLS = st.sampled_from([None, "", "f", "m", "x", 0, 1, 2, -1, True, 0.5, 1e-320, 1e30, 1e39, 1e300, np.inf, -np.inf])


@given(rows=st.lists(st.fixed_dictionaries(dict.fromkeys(GOOD, CELLS)), min_size=1, max_size=8), data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_rows_whatever_they_are_keep_a_silo_from_loading_them(rows, data, tmp_path):
    missing = data.draw(st.sampled_from(["refuse", "center"]))
    standardize = data.draw(st.sampled_from(["declared", "none", "paid"]))
    text = WIDE.replace("[data]", f'[data]\nmissing = "{missing}"\nstandardize = "{standardize}"')
    if standardize == "paid":
        text = text.replace("mean = 50, scale = 20", "low = 0, high = 100")
        text = text.replace("missing = 70", "low = 0, high = 200")
    shard = shard_of(read(text), "n", written(tmp_path, "n", pd.DataFrame(rows)))
    loaded = shard.federation
    if loaded.unpaid is not None:  # constants as fine as a silo takes them
        loaded = loaded.standardized([0.0, 200.0], [100 * FINEST, 200 * FINEST])
    for part in (loaded.train, loaded.test):
        assert np.isfinite(part.features).all()
        assert np.isfinite(part.labels).all()


def test_a_silo_in_which_nobody_is_held_out_is_ordinary(plan, tmp_path):
    kept = [p for p in range(200) if p not in _held_out(plan, range(200))][:3]
    frame = table(range(200), 5)
    shard = shard_of(plan, "n", written(tmp_path, "n", frame[frame.patient.isin(kept)])).federation
    assert len(shard.test) == 0
    assert len(shard.train) == 6


def _held_out(plan, people: range) -> set[int]:
    from tacit.data.load import drawn

    mask = drawn(pseudonyms(pd.Series(people), SECRET), plan.data.test_fraction, 0)
    return {person for person, out in zip(people, mask, strict=True) if out}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ('[model]\nname = "somewhere.module:factory"', "model.name"),
        ('[model]\ninit_from = "/etc/passwd"', "model.init_from"),
        ('[model]\nloss = "os:getcwd"', "model.loss"),
        ('[evaluation]\ndata = "/etc/passwd"', "evaluation.data"),
        ('[model]\nname = "/tmp/module:factory"', "model.name"),
        ('[exchange]\nname = "shuffled"', "exchange.name"),
    ],
)
def test_a_request_that_names_a_file_or_code_is_refused_before_it_is_looked_at(change, named):
    with pytest.raises(UserError) as caught:
        read(EXPERIMENT + change)
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
        "privacy": {
            "budget_file": str(tmp_path / "budget"),
            "max_silos_per_subject": 1,
            "over_silo_cap": "refuse",
        },
    }
    before = planned(content)
    text = travelling(before)
    assert str(tmp_path) not in text
    after = received(text)
    assert after.noise_multiplier == before.noise_multiplier
    assert [line.epsilon for line in after.guarantees()] == [line.epsilon for line in before.guarantees()]
    assert travelling(after) == text


def test_an_experiment_cannot_name_visits_where_the_silo_has_people(tmp_path):
    """Its guarantee for a subject would be one for a visit."""
    file = written(tmp_path, "n", PEOPLE)
    shard_of(read(EXPERIMENT), "n", file)
    with refuses("mismatch", "subjects", file=str(file)):
        shard_of(read(EXPERIMENT.replace('"patient"', '"visit"')), "n", file)


@pytest.mark.parametrize(
    ("before", "after", "code", "field", "names"),
    [
        ("AGE", "AGE_YEARS", "unknown-name", "columns.age", ["AGE, ill, patient"]),
        ('subjects = "', 'subjects = "NO_', "unknown-name", "subjects", ["'patient'"]),
        ('path = "', 'path = "no', "file-not-found", "path", []),
    ],
)
def test_a_mistake_in_a_data_file_names_the_file_and_the_key(tmp_path, before, after, code, field, names):
    (tmp_path / "table.csv").write_text("patient,AGE,pressure,ill,visit\n1,40,120,0,1\n")
    file = tmp_path / "D2.toml"
    file.write_text('path = "table.csv"\nsubjects = "patient"\n[columns]\nage = "AGE"\n'.replace(before, after))
    with refuses(code, field, file=str(file), names=names) as refused:
        shard_of(read(EXPERIMENT), "n", file)
    assert str(refused.value).startswith(f"{file}: {field}: ")


def own(tmp_path: Path, rows: pd.DataFrame, **changes: object) -> Path:
    """A silo with a hold-out of its own."""
    file = written(tmp_path, "n", rows)
    options = {"fraction": 0.3, **changes}
    file.write_text(f"{file.read_text()}\n[hold_out]\n" + "".join(f"{k} = {v!r}\n" for k, v in options.items()))
    return file


def held_out_people(text: str, file: Path) -> tuple[set[int], set[int]]:
    """Patients by age: which are trained on, and which evaluated."""
    found = shard_of(read(text), "n", file).federation
    train, test = (set(np.round(rows.features[:, 0] * 20 + 50).astype(int)) for rows in (found.train, found.test))
    return train, test


NUMBERS = np.arange(200)
PEOPLE = pd.DataFrame({"patient": NUMBERS, "age": NUMBERS, "ill": NUMBERS % 2, "visit": 7 * NUMBERS})


@pytest.mark.parametrize(
    "text",
    [
        EXPERIMENT,
        EXPERIMENT.replace("[data]", "[data]\nseed = 99"),
        EXPERIMENT.replace("test_fraction = 0.25", "test_fraction = 0.6"),
    ],
)
def test_a_requester_does_not_choose_the_people_of_metrics_without_noise(tmp_path, text):
    file = own(tmp_path, PEOPLE)
    train, test = held_out_people(text, file)
    assert test == held_out_people(EXPERIMENT, file)[1]
    assert 30 < len(test) < 90
    assert not train & test


def test_people_of_a_silos_own_hold_out_are_in_no_other_release(tmp_path):
    file = own(tmp_path, PEOPLE)
    never = held_out_people(EXPERIMENT, file)[1]
    paid = EXPERIMENT + '[evaluation]\nstatus = "paid"\nnoise_multiplier = 10.0\n'
    train, test = held_out_people(paid, file)
    assert not (train | test) & never
    plain = tmp_path / "plain"
    plain.mkdir()
    assert test == held_out_people(paid, written(plain, "n", PEOPLE))[1] - never  # of those whom all silos hold out


def test_other_peoples_presence_does_not_change_who_is_held_out(tmp_path):
    file = own(tmp_path, PEOPLE)
    whole = held_out_people(EXPERIMENT, file)[1]
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(read_silo_data(file).hold_out.key, other / "n.hold_out.key")
    some = PEOPLE[PEOPLE.patient % 3 > 0]
    assert held_out_people(EXPERIMENT, own(other, some))[1] == whole & set(some.age)


def test_the_lot_of_a_silo_is_its_own_secret(tmp_path):
    file = own(tmp_path, PEOPLE)
    first = held_out_people(EXPERIMENT, file)[1]
    key = Path(read_silo_data(file).hold_out.key)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_bytes()) == 32
    key.unlink()
    assert held_out_people(EXPERIMENT, file)[1] != first
    key.write_bytes(b"short")
    with refuses("file-damaged", "hold_out.key"):
        shard_of(read(EXPERIMENT), "n", file)
    key.unlink()
    key.symlink_to(tmp_path / "elsewhere")
    with refuses("file-access", "hold_out.key"):
        shard_of(read(EXPERIMENT), "n", file)
    assert not (tmp_path / "elsewhere").exists()
