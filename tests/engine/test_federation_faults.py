"""Silos that vanish, and parties that are stopped and go on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from tacit.crypto import EVERYONE
from tacit.engine.learner import packed
from tacit.exchange import Grid
from tacit.exchange.post import SERVER, OutOfTurn, join
from tacit.federation.protocol.memory import keep, recall
from tacit.federation.protocol.messages import Message
from tacit.federation.protocol.sides import RoundFailed
from tests.engine.federated import ROUNDS, flat, parties, planned, simulated
from tests.refusals import refuses
from tests.short_keys import shortened

SETUP = 2  # phases before the first round: hello and begin
PHASES = ("keys", "shares", "vectors", "survivors", "unmasking")
ONE = {"name": "masked", "drop_outs": 1}
QUIET = {"noise_multiplier": 0.0}


def silent(*gone: tuple[str, int]):
    """Nothing arrives of these answers: (silo, phase from 1 on)."""

    def harm(silo, step, answer):
        return None if (silo, step) in gone else answer

    return harm


@pytest.mark.parametrize("phase", range(5), ids=PHASES)
def test_a_silo_that_vanishes_in_a_masked_round_is_left_out_and_comes_back(phase, experiment, visits):
    """In the second of three rounds. Its vector is part of the sum if it has arrived, and is not if it has not."""
    made = planned(experiment, "uldp-avg", "masked", exchange=ONE, method=QUIET)
    whole, without, grid = simulated(made, visits), simulated(made, visits, rounds=0), Grid(made.exchange.precision)
    for number in range(1, ROUNDS + 1):
        there = [k for k in range(3) if (number, k) != (2, 1)]
        vectors = without.contributed(number, without.work.draw(number), without.broadcast, grid).parts
        total = grid.numbers(vectors[there].sum(axis=0)).astype(np.float32)
        without.server = without.kernels.aggregate(without.server, (total,), ())
    federation = parties(made, visits)
    outcome = federation.run(silent(("south", SETUP + len(PHASES) + phase + 1)))
    assert outcome.rounds == ROUNDS
    assert [(refusal.round, refusal.silo) for refusal in outcome.refusals] == [(2, "south")]
    expected = whole if phase > PHASES.index("vectors") else without
    np.testing.assert_allclose(flat(outcome.model), flat(expected.model()), atol=1e-6)
    assert np.abs(flat(whole.model()) - flat(without.model())).max() > 1e-4


def test_a_round_that_fails_in_a_silo_leaves_nothing_of_the_one_before_to_be_asked_for(experiment, visits, monkeypatch):
    """Its vector would leave under the ledger's line of another round."""
    federation = parties(planned(experiment, "uldp-avg", "masked"), visits)
    phases = federation.coordinator.phases()
    told = next(phases)
    while Message.from_bytes(told["south"], SERVER, 1 << 20).phase != "exchange":
        told = phases.send({silo: federation.silos[silo].handle(sent) for silo, sent in told.items()})
    south, desk = federation.silos["south"], federation.coordinator._desk
    model = federation.coordinator.plan.method.server.broadcast(federation.coordinator.server)
    desk.begin(2)
    monkeypatch.setattr(south.silos, "contributed", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        south.handle(desk.write(EVERYONE, "work", join([packed(model), b""])))
    with pytest.raises(OutOfTurn):
        south.handle(desk.framed("exchange", Message.from_bytes(told["south"], SERVER, 1 << 20).content))


@pytest.mark.parametrize("phase", range(5), ids=PHASES)
def test_a_round_with_too_few_silos_left_ends_and_nothing_of_it_is_released(phase, experiment, visits):
    made = planned(experiment, "uldp-avg", "masked", exchange=ONE)
    federation = parties(made, visits)
    step = SETUP + len(PHASES) + phase + 1
    with refuses("too-few", kind=RoundFailed, number=2, names=["north", "west"]):
        federation.run(silent(("north", step), ("west", step)))
    assert federation.coordinator.done == 1
    one_round = simulated(made, visits, rounds=1)
    np.testing.assert_allclose(flat(federation.coordinator.model()), flat(one_round.model()), atol=1e-6)


def test_a_masked_message_that_was_altered_counts_as_none(experiment, visits):
    made = planned(experiment, "uldp-avg", "masked", exchange=ONE, method=QUIET)
    federation = parties(made, visits)

    def harm(silo, step, answer):
        if (silo, step) != ("west", SETUP + 3):
            return answer
        return answer[:-9] + bytes([answer[-9] ^ 1]) + answer[-8:]

    outcome = federation.run(harm)
    assert outcome.rounds == ROUNDS
    (refusal,) = outcome.refusals
    assert (refusal.round, refusal.silo) == (1, "west")
    assert "not signed by west" in refusal.reason


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("longer", "bytes where"),
        ("shorter", "bytes where"),
        ("of the round before", "not signed by south"),
        ("another's", "not signed by south"),
        ("of the phase before", "not signed by south"),
    ],
)
def test_a_masked_vector_that_is_none_is_refused_its_silo_named_and_the_others_go_on(kind, words, experiment, visits):
    """All bits of the right number of bytes are a masked vector: within its length no other can be told from it."""
    made = planned(experiment, "uldp-avg", "masked", exchange=ONE, method=QUIET)
    federation = parties(made, visits)
    vectors = {number: SETUP + len(PHASES) * (number - 1) + PHASES.index("vectors") + 1 for number in (1, 2)}
    kept: dict[tuple[str, int], bytes] = {}

    def signed(bytes_more: int) -> bytes:
        silo = federation.silos["south"]
        content = bytes(silo.role.terms.ring.size + bytes_more)
        return silo._here.framed("exchange", silo.role._post.write(SERVER, "vectors", content))

    def harm(silo, step, answer):
        kept[silo, step] = Message.from_bytes(answer, silo, 1 << 30).content
        if (silo, step) != ("south", vectors[2]):
            return answer
        if kind in ("longer", "shorter"):
            return signed(8 if kind == "longer" else -8)
        earlier = {
            "of the round before": ("south", vectors[1]),
            "another's": ("north", vectors[2]),
            "of the phase before": ("south", vectors[2] - 1),
        }[kind]
        return dataclasses.replace(Message.from_bytes(answer, silo, 1 << 30), content=kept[earlier]).to_bytes()

    outcome = federation.run(harm)
    assert outcome.rounds == ROUNDS
    (refusal,) = outcome.refusals
    assert (refusal.round, refusal.silo) == (2, "south")
    assert words in refusal.reason


@pytest.mark.filterwarnings("ignore::tacit.families.weighting.paillier.WeakKeyWarning")
def test_a_weighted_round_needs_every_silo(experiment, visits):
    federation = parties(
        planned(experiment, "uldp-sgd", "weighted", exchange=shortened("weighted")), visits[visits.person < 20]
    )
    # hello, begin, open and three phases of the exchange's own setup
    with refuses("too-few", kind=RoundFailed, number=1, names=["south"]):
        federation.run(silent(("south", 7)))
    assert federation.coordinator.done == 0


WEIGHTED_SETUP = 5  # phases: keys, seed, counts, tables, weights


@pytest.mark.parametrize("phase", [1, 2, 3], ids=PHASES[1:4])
def test_a_silo_that_vanishes_in_a_weighted_round_is_left_out_and_comes_back(phase, experiment, visits):
    """In the second of three rounds. The subjects of the others have the weights that they had."""
    few = visits[visits.person >= 48]  # each with a slot alone
    made = planned(experiment, "uldp-avg", "weighted", exchange={"drop_outs": 1, "slots": 64}, method=QUIET)
    expected, fine = simulated(made, few, rounds=0), Grid(1e-12)
    for number in range(1, ROUNDS + 1):
        is_left_out = number == 2 and phase <= PHASES.index("vectors")
        work, given = expected.work, expected.given(expected.broadcast)
        parts = work.integers(work.draw(number), given, fine).parts[[0, 2] if is_left_out else [0, 1, 2]]
        total = fine.numbers(np.sum(parts, axis=0)).astype(np.float32)
        expected.server = expected.kernels.aggregate(expected.server, (total,), ())
    step = SETUP + WEIGHTED_SETUP + len(PHASES) + phase + 1
    outcome = parties(made, few).run(silent(("south", step)))
    assert outcome.rounds == ROUNDS
    assert [(refusal.round, refusal.silo) for refusal in outcome.refusals] == [(2, "south")]
    np.testing.assert_allclose(flat(outcome.model), flat(expected.model()), atol=1e-6)


def test_setup_of_a_weighted_sum_needs_every_silo_though_some_may_vanish_later(experiment, visits):
    made = planned(experiment, "uldp-avg", "weighted", exchange={"drop_outs": 1})
    for step in range(SETUP + 1, SETUP + WEIGHTED_SETUP + 1):
        federation = parties(made, visits[visits.person < 20])
        if step == SETUP + 4:  # tables go to the first silo alone
            continue
        with refuses("too-few", kind=RoundFailed, names=["south"]):
            federation.run(silent(("south", step)))
        assert federation.coordinator.done == 0


PAIRS = ("keys", "vectors", "seeds")
ONE_PAIRED = {"name": "pairwise", "graph": "complete", "drop_outs": 1}


@pytest.mark.parametrize("phase", range(2), ids=PAIRS[:2])
def test_a_silo_that_vanishes_from_a_pairwise_round_takes_its_pairs_along(phase, experiment, visits):
    """Without its vector, what the others share with it is taken out of the sum: what is left is that of the others."""
    made = planned(experiment, "dp-fedavg", "pairwise", exchange=ONE_PAIRED, method=QUIET, train={"rounds": 1})
    alone, grid = simulated(made, visits, rounds=0), Grid(made.exchange.precision)
    vectors = alone.contributed(1, alone.work.draw(1), alone.broadcast, grid).parts
    total = grid.numbers(vectors[[0, 2]].sum(axis=0)).astype(np.float32)
    alone.server = alone.kernels.aggregate(alone.server, (total,), ())
    outcome = parties(made, visits).run(silent(("south", SETUP + 1 + phase)))
    assert [(refusal.round, refusal.silo) for refusal in outcome.refusals] == [(1, "south")]
    np.testing.assert_allclose(flat(outcome.model), flat(alone.model()), atol=1e-6)


def test_a_pairwise_round_ends_with_a_vector_that_came_and_cannot_be_taken(experiment, visits):
    """To go on, the others would have to show what hides it."""
    made = planned(experiment, "dp-fedavg", "pairwise", exchange=ONE_PAIRED)
    for code, spoil in (
        ("rejected", lambda answer: answer[:-1]),
        ("bad-signature", lambda answer: answer[:-9] + bytes([answer[-9] ^ 1]) + answer[-8:]),
    ):
        federation = parties(made, visits)
        with refuses(code, kind=RoundFailed, number=1, names=["west"]):
            federation.run(
                lambda silo, step, answer, spoil=spoil: spoil(answer) if (silo, step) == ("west", 4) else answer
            )
        assert federation.steps == SETUP + 2
        assert federation.coordinator.done == 0


@pytest.mark.parametrize("step", [1, 2])
def test_setup_needs_every_silo(step, experiment, visits):
    federation = parties(planned(experiment, "uldp-avg", "masked", exchange=ONE), visits)
    with refuses("too-few", kind=RoundFailed, number=0, names=["south"]):
        federation.run(silent(("south", step)))


# -- stopped, and going on


class Stopped(Exception):
    """The power went out."""


def stopping(step: int):
    """After all silos have done their work of this phase, and before the coordinator has heard of it."""

    def harm(silo, number, answer):
        if number == step and silo == "west":
            raise Stopped
        return answer

    return harm


@pytest.mark.parametrize(
    ("method", "exchange", "phases"),
    [
        ("scaffold", "plain", 1),
        ("uldp-sgd", "masked", 5),
        ("silo-only", "plain", 1),
        ("mean-regularized", "pairwise", 3),
    ],
)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_run_that_was_stopped_goes_on_to_the_same_model(
    method, exchange, phases, number, experiment, visits, tmp_path
):
    made = planned(experiment, method, exchange, train={"server_optimizer": "adam", "server_learning_rate": 0.1})
    options = {"checkpoint": tmp_path / "checkpoint", "memory": tmp_path}
    with pytest.raises(Stopped):
        parties(made, visits, **options).run(stopping(SETUP + phases * number))
    resumed = parties(made, visits, resume=number > 1, **options)
    outcome = resumed.run()
    assert outcome.rounds == ROUNDS
    assert resumed.steps == SETUP + phases * (ROUNDS + 1 - number)
    whole = parties(made, visits)
    np.testing.assert_array_equal(flat(outcome.model), flat(whole.run().model))
    for name in whole.names:
        mine, theirs = (federation.silos[name].silos.states for federation in (resumed, whole))
        jax.tree.map(np.testing.assert_array_equal, mine, theirs)


def test_a_silo_that_has_lost_its_memory_does_not_go_on(experiment, visits, tmp_path):
    made = planned(experiment, "scaffold")
    options = {"checkpoint": tmp_path / "checkpoint", "memory": tmp_path}
    with pytest.raises(Stopped):
        parties(made, visits, **options).run(stopping(SETUP + 3))
    for file in (tmp_path / "south").iterdir():
        file.unlink()
    with refuses("file-not-found", "--resume"):
        parties(made, visits, resume=True, **options).run()


def test_correlated_noise_does_not_go_on_without_a_seed(experiment, visits, tmp_path):
    numbers = {"correlated_noise": {"groups": 2, "bands": 2}}
    made = planned(experiment, "uldp-avg", "plain", method=numbers, seed=None)
    with refuses("cannot-resume", "--resume"):
        parties(made, visits, checkpoint=tmp_path / "checkpoint", resume=True)


TREE = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32(1.5)}


def test_what_is_kept_comes_back(tmp_path):
    keep(tmp_path / "kept", "plan", 7, TREE)
    number, tree = recall(tmp_path / "kept", "plan", TREE)
    assert number == 7
    np.testing.assert_array_equal(tree["a"], TREE["a"])


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
        lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:],
        lambda data: b"",
    ],
)
def test_a_half_written_or_damaged_file_is_found_out(harm, tmp_path: Path):
    file = tmp_path / "kept"
    keep(file, "plan", 7, TREE)
    file.write_bytes(harm(file.read_bytes()))
    with refuses("file-damaged", "--resume", names=["kept"]):
        recall(file, "plan", TREE)


def test_a_file_of_another_plan_or_another_model_is_refused(tmp_path):
    keep(tmp_path / "kept", "plan", 7, TREE)
    with refuses("file-damaged", "--resume"):
        recall(tmp_path / "kept", "other", TREE)
    with refuses("file-damaged", "--resume"):
        recall(tmp_path / "kept", "plan", TREE | {"a": np.zeros((3, 2), np.float32)})
    with refuses("file-access", "--resume"):
        recall(tmp_path / "missing", "plan", TREE)
