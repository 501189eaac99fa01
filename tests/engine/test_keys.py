"""Whoever else is there: keys of people, and what a run draws and adds up for them, depend on nobody else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit.crypto import Secret
from tacit.data import Federation
from tacit.engine.run import load_federation
from tacit.engine.simulate import Simulation
from tacit.federation.protocol.agreement import check_federated
from tacit.federation.request import received
from tacit.federation.site.shard import SiloData, load_shard, pseudonyms
from tacit.planning.plan import Plan, plan
from tests.engine.federated import Parties, flat, planned, simulated
from tests.federation.worlds import travelled
from tests.methods.worlds import before_noise
from tests.refusals import refuses

SECRET = Secret(bytes(range(32)))
COUNT = 40  # declared subjects
EXPERIMENT = """
seed = 3

[data]
label = "value"
task = "real"
subjects = { column = "patient", count = 40 }
silos = { count = 2 }
test_fraction = 1e-9
numeric = { x = {}, y = {} }

[model]
name = "linear"

[method]
name = "uldp-sgd"
clip = 1.0
noise_multiplier = 0.0

[train]
rounds = 1
"""


def shards_of(plan: Plan, folder: Path, tables: dict[str, pd.DataFrame]) -> dict[str, Federation]:
    """The tables of silos as a federation reads them: pseudonyms, caps and all."""
    shards = {}
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
        options = SiloData(path=str(folder / f"{name}.csv"), subjects="patient")
        shards[name] = load_shard(plan, name, options, SECRET).federation
    return shards


def released(plan: Plan, folder: Path, tables: dict[str, pd.DataFrame]) -> np.ndarray:
    """The sum that a federation's first round releases, in clips: of gradients, before the server's constants."""
    server = Parties(plan, shards_of(plan, folder, tables)).run()
    divisor = plan.method.divisors.total
    return flat(server.model) * divisor / plan.server_step.rate


def colliding() -> tuple[int, int]:
    """Two identifiers whose pseudonyms are equal modulo the declared number of subjects."""
    number = pseudonyms(pd.Series(range(100)), SECRET).astype(np.uint64) % np.uint64(COUNT)
    for first in range(100):
        for second in range(first + 1, 100):
            if number[first] == number[second]:
                return first, second
    raise AssertionError("no two of 100 people among 40 numbers")


@pytest.mark.parametrize(
    ("method", "silos"),
    [
        ('name = "subject-sgd"', 1),
        ('name = "uldp-sgd"', 2),
        ('name = "uldp-sgd"\nweights = "records"\ndisclose_counts = true', 2),
    ],
)
def test_removing_one_of_two_people_with_equal_pseudonyms_modulo_a_count_moves_the_sum_by_one_clip(
    method, silos, tmp_path
):
    """With one number for both they were clipped together, and removing one turned their joint vector around: 2 clips.
    Steep gradients in opposite directions, one of them steeper."""
    privacy = f'[privacy]\nmax_silos_per_subject = {silos}\n[exchange]\nname = "masked"\nprecision = 1e-6\n'
    made = received(travelled(EXPERIMENT.replace('name = "uldp-sgd"', method) + privacy))
    one, other = colliding()
    columns = ["patient", "x", "y", "value"]
    rows = [(one, 1.0, 0.0, 1e4), (other, 1.0, 0.0, -3e4), (other, 1.0, 0.0, -3e4)]
    more = [(other, 1.0, 0.0, -3e4)] if silos > 1 else []
    north, south = pd.DataFrame(rows, columns=columns), pd.DataFrame([(7777, 0.0, 1.0, 5.0), *more], columns=columns)
    before = released(made, tmp_path, {"north": north, "south": south})
    fewer = {"north": north[north.patient != other], "south": south[south.patient != other]}
    moved = float(np.linalg.norm(before - released(made, tmp_path, fewer)))
    assert 0.4 < moved <= 1 + 1e-3


def test_a_plan_prints_how_likely_two_subjects_are_taken_for_one():
    made = received(travelled(EXPERIMENT.replace("noise_multiplier = 0.0", "noise_multiplier = 5.0")))
    assert any(f"{COUNT**2 / 2**65:.1g}" in text for text in made.guarantees()[0].assumptions)


# -- the simulator, from a table with somebody and without


def pair(made: Plan, visits: pd.DataFrame, rounds: int = 0) -> tuple[Simulation, Simulation]:
    """With everybody, and without the first person who is trained on."""
    held_out = len(load_federation(made, visits).test)
    frames = (visits[visits.person != person] for person in range(60))
    less = next(frame for frame in frames if len(load_federation(made, frame).test) == held_out)
    return simulated(made, visits, rounds), simulated(made, less, rounds)


def moves(made: Plan, visits: pd.DataFrame, rounds: int) -> list[float]:
    """How far one removal moves the sum of each round, at the model of the start."""
    sims = pair(made, visits)
    sums = ([before_noise(sim, sim.work.draw(t)) for t in range(1, rounds + 1)] for sim in sims)
    return [float(np.linalg.norm(one - other)) for one, other in zip(*sums, strict=True)]


def test_people_keep_their_turns_whoever_else_is_there(experiment, visits):
    """One removal changes one turn, by one clip; by number, all turns of those who came after changed."""
    turns = {"correlated_noise": {"groups": 4, "bands": 2}, "noise_multiplier": 0.0}
    made = planned(experiment, "uldp-avg", method=turns)
    moved = moves(made, visits, rounds=4)
    assert sorted(moved)[:3] == pytest.approx([0, 0, 0], abs=1e-5)
    assert 0.01 < max(moved) <= made.method.clip.norm * (1 + 1e-4)


@pytest.mark.parametrize("method", ["ldp-laplace", "ss-simple"])
def test_people_keep_their_batches_and_messages_whoever_else_is_there(method, experiment, visits):
    """One removal changes one report of one batch. (Reports as good as without noise.)"""
    exchange = "shuffled" if method == "ss-simple" else "plain"
    made, changed = planned(experiment, method, exchange), 0
    whole, less = pair(made, visits)
    for t in range(1, made.method.turns + 1):
        before, after = (sim.work.messages(sim.work.draw(t), sim.given(sim.broadcast)) for sim in (whole, less))
        assert before.shape == after.shape
        changed += int((np.abs(before - after).max(axis=1) > 1e-5).sum())
    assert changed == 1


def test_people_keep_their_places_in_a_graph_whoever_else_is_there(visits):
    """One removal moves what nodes hold after a round by at most one clip."""
    data = {
        "label": "ill",
        "numeric": {"age": {"mean": 50, "scale": 10}},
        "subjects": {"column": "person", "count": 60},
        "silos": {"column": "clinic", "count": 3},
    }
    method = {"name": "muffliato-sgd", "nodes": "subjects", "noise_multiplier": 0.0, "clip": 0.1}
    made = plan({"seed": 1, "data": data, "method": method | {"local_learning_rate": 2.0}, "train": {"rounds": 1}})
    whole, less = pair(made, visits, rounds=1)
    assert whole.states.shape == less.states.shape == (60, 2)
    moved = np.linalg.norm(np.asarray(whole.states) - np.asarray(less.states))
    assert 0.001 < moved <= 0.1 * (1 + 1e-4)


@pytest.mark.parametrize("numbers", [{"subject_sample_rate": 0.5}, {"records_per_subject": 2}])
def test_coins_and_choices_of_records_are_the_same_whoever_else_is_there(numbers, experiment, visits):
    made = planned(experiment, "subject-sgd", method={"noise_multiplier": 0.0, **numbers})
    assert 0.01 < max(moves(made, visits, rounds=8)) <= made.method.clip.norm * (1 + 1e-4)


def test_a_common_list_of_subjects_is_refused_on_a_federation(experiment):
    made = planned(experiment, "uldp-avg", "weighted", exchange={"index": "list"})
    with refuses("simulator-only", "exchange.index"):
        check_federated(made)


def test_pseudonyms_keep_64_bits():
    keys = pseudonyms(pd.Series(range(20_000)), SECRET)
    assert keys.dtype == np.int64
    assert len(np.unique(keys)) == 20_000
    # the highest bits are in use as much as the lowest: 20,000 fair coins each, 64 bits at 1e-6 together
    ones = np.unpackbits(keys.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 0.5 * 6 / np.sqrt(20_000)
