"""Coordinator and silos as handlers of messages: the models of the simulator, and what becomes of bad messages."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from tacit.crypto import Identity, Refused
from tacit.engine.learner import packed
from tacit.engine.run import load_federation
from tacit.errors import Forbidden
from tacit.exchange.post import SERVER, OutOfTurn, join, join_named, named_parts, write_numbers
from tacit.federation.protocol.agreement import Greeting, RoundsDone, mark
from tacit.federation.protocol.messages import Desk, Message, write_counts
from tacit.federation.protocol.sides import RoundFailed, SiloSide
from tacit.methods import METHODS as ALL
from tacit.planning.claims import exchanges_for
from tacit.planning.plan import plan
from tacit.privacy import Nothing, Unprotected
from tests.engine.federated import (
    EXCHANGES,
    METHODS,
    ROUNDS,
    flat,
    one_silo,
    parties,
    planned,
    simulated,
)
from tests.refusals import refuses
from tests.short_keys import shortened

pytestmark = pytest.mark.filterwarnings("ignore::tacit.families.weighting.paillier.WeakKeyWarning")
QUICK = [
    ("fedavg", "plain"),
    ("subject-sgd", "masked"),
    ("uldp-avg", "masked"),
    ("local-record", "plain"),
    ("uldp-avg", "weighted"),
    ("graph-regularized", "plain"),
    ("dp-fedavg", "pairwise"),
    ("ss-simple", "shuffled"),
    ("ldp-laplace", "plain"),
]
CELLS = [
    pytest.param(name, exchange, marks=() if (name, exchange) in QUICK else pytest.mark.slow)
    for name, kind in ALL.items()
    if not kind.info.pools and not kind.info.serverless
    for exchange in EXCHANGES
    if exchange in exchanges_for(kind.info)
]


@pytest.fixture
def few(visits):
    """A third of the people, for exchanges that encrypt."""
    return visits[visits.person < 20]


@pytest.mark.parametrize(("method", "exchange"), CELLS)
def test_a_federation_learns_the_model_of_the_simulator(method, exchange, experiment, visits, few):
    frame = few if exchange == "weighted" else visits
    made = planned(experiment, method, exchange)
    federation = parties(made, frame)
    outcome = federation.run()
    simulation = simulated(made, frame)
    assert outcome.rounds == ROUNDS
    assert outcome.refusals == ()
    if made.method.info.personal:
        for k, name in enumerate(federation.names):
            theirs = jax.tree.map(lambda leaf, k=k: leaf[k], simulation.states)
            np.testing.assert_allclose(flat(federation.silos[name].silos.states), flat(theirs), atol=1e-6)
        if simulation.shared_model() is not None:
            np.testing.assert_allclose(flat(outcome.model), flat(simulation.shared_model()), atol=1e-6)
        return
    np.testing.assert_allclose(flat(outcome.model), flat(simulation.model()), atol=1e-6)
    assert np.abs(flat(outcome.model)).max() > 1e-3


def test_disclosed_counts_weigh_people_as_in_the_simulator(experiment, few):
    method = {"weights": "records", "disclose_counts": True}
    made = planned(experiment, "uldp-sgd", "masked", method=method)
    np.testing.assert_allclose(flat(parties(made, few).run().model), flat(simulated(made, few).model()), atol=1e-6)


def counting(experiment, visits):
    """A federation whose silos have told their counts, and these, as they have signed them."""
    made = planned(experiment, "uldp-avg", "masked", method={"weights": "records", "disclose_counts": True})
    federation = parties(made, visits)
    phases = federation.coordinator.phases()
    told = next(phases)
    for _ in range(2):  # hello, begin
        answers = {silo: federation.silos[silo].handle(message) for silo, message in told.items()}
        told = phases.send(answers)
    return federation, {silo: Message.from_bytes(answer, silo, 1 << 24).content for silo, answer in answers.items()}


def alone(side, relayed):
    """The counts of a silo, as those of all silos."""
    _, counts = np.unique(side._placed.train.subject, return_counts=True)
    order = np.argsort(side._counted)
    return write_counts(side._counted[order], counts[order])


@pytest.mark.parametrize(
    "lie",
    [
        alone,
        lambda side, relayed: join_named({"south": relayed["south"]}),
        lambda side, relayed: join_named(relayed | {"north": relayed["south"]}),
        lambda side, relayed: join_named(relayed | {"north": relayed["north"][:-16]}),
    ],
)
def test_a_server_cannot_make_a_silo_count_its_own_records_as_all_there_are(lie, experiment, visits):
    """A person with records in m silos would weigh nearly m, and 1 is counted."""
    federation, relayed = counting(experiment, visits)
    south, desk = federation.silos["south"], federation.coordinator._desk
    with pytest.raises(Refused):
        south.handle(desk.write("south", "totals", lie(south, relayed)))


def test_counts_of_an_earlier_start_of_the_run_are_refused(experiment, visits):
    """Their names are those of other draws: nobody of this silo would be found among them."""
    federation, before = counting(experiment, visits)
    desk = federation.coordinator._desk
    again = {name: SiloSide(old.plan, name, old._shard, old._keys) for name, old in federation.silos.items()}
    greeting = Greeting(silos=federation.names, plan=mark(federation.plan)).to_bytes()
    heard = {name: side.handle(desk.write(name, "hello", greeting)) for name, side in again.items()}
    signed = {silo: Message.from_bytes(answer, silo, 1 << 20).content for silo, answer in heard.items()}
    begin = join([RoundsDone(done=0).to_bytes(), join_named(signed), packed(again["south"]._made.frozen)])
    now = {name: side.handle(desk.write(name, "begin", begin)) for name, side in again.items()}
    counts = {silo: Message.from_bytes(answer, silo, 1 << 24).content for silo, answer in now.items()}
    with refuses("wrong-run", kind=Refused, peer="north"):
        again["south"].handle(desk.write("south", "totals", join_named(counts | {"north": before["north"]})))
    again["north"].handle(desk.write("north", "totals", join_named(counts)))


def test_noise_that_is_correlated_over_rounds_is_that_of_the_simulator(experiment, visits):
    made = planned(experiment, "uldp-avg", "plain", method={"correlated_noise": {"groups": 2, "bands": 2}})
    np.testing.assert_allclose(
        flat(parties(made, visits).run().model), flat(simulated(made, visits).model()), atol=1e-6
    )


def test_frozen_layers_are_those_of_the_coordinator(experiment, visits):
    model = {"name": "mlp", "hidden": [4], "freeze": ["layer0"]}
    made = planned(experiment, "fedavg", model=model, seed=None)
    federation = parties(made, visits)
    outcome = federation.run()
    for side in federation.silos.values():
        np.testing.assert_array_equal(flat(side.silos.frozen), flat(outcome.model["layer0"]))


def test_a_silo_without_records_takes_part_like_any_other(experiment, visits):
    made = planned(experiment, "subject-sgd", "masked")
    whole = parties(made, visits)
    shard = whole.silos["west"]._shard
    nothing = dataclasses.replace(shard, train=shard.train.take(slice(0, 0)))
    west = whole.silos["west"]
    whole.silos["west"] = type(west)(made, "west", nothing, west._keys)
    outcome = whole.run()
    assert outcome.rounds == ROUNDS
    assert np.isfinite(flat(outcome.model)).all()


def test_without_a_seed_silos_share_their_coins_and_nothing_else(experiment, visits):
    made = planned(experiment, "uldp-sgd", "masked", seed=None)
    federation = parties(made, visits)
    federation.run()
    drawn = [side._common.stream("subjects", 1).words(4).tolist() for side in federation.silos.values()]
    own = [side._randomness.stream("noise", 1, 0).words(4).tolist() for side in federation.silos.values()]
    assert drawn[0] == drawn[1] == drawn[2]
    assert len({tuple(words) for words in (*own, drawn[0])}) == 4
    again = parties(made, visits)
    for side in again.silos.values():  # the same secret, another run
        object.__setattr__(side._keys, "common", next(iter(federation.silos.values()))._keys.common)
    again.run()
    assert next(iter(again.silos.values()))._common.stream("subjects", 1).words(4).tolist() != drawn[0]


# -- what leaves


# setup has two phases; a plain round one, of a masked one the third is that of the vectors, of a pairwise one the
# second; the weighted exchange has a setup of its own, and with hidden sampling a round ends with the sums
@pytest.mark.parametrize(
    ("method", "exchange", "more", "step"),
    [
        ("local-record", "plain", {}, 4),
        ("uldp-avg", "masked", {}, 10),
        ("dp-fedavg", "pairwise", {}, 7),
        ("uldp-avg", "weighted", {}, 15),
        ("uldp-avg", "weighted", shortened("weighted"), 8),
        ("uldp-sgd", "weighted", shortened("weighted", hidden_sampling=True), 11),
    ],
)
def test_a_release_is_announced_before_it_leaves_and_one_that_is_forbidden_does_not(
    method, exchange, more, step, experiment, visits
):
    made = planned(experiment, method, exchange, exchange=more)
    announced = []

    def hook(name):
        def before_release(mechanism, number, events):
            announced.append((name, mechanism, number))
            assert set(events) >= {f"{made.promise.unit}/public/zero-out"}
            if name == "south" and number == 2:
                raise Forbidden("budget-exhausted", "privacy.budget", "nothing is left", "use other data")

        return before_release

    federation = parties(made, visits, before_release=hook)
    seen = []

    def watched(silo, number, answer):
        seen.append((silo, number))
        return answer

    with pytest.raises(Forbidden):
        federation.run(watched)
    assert {entry for entry in announced if entry[2] == 1} == {(name, method, 1) for name in federation.names}
    assert federation.steps == step
    assert ("south", step) not in seen
    assert ("north", step) in seen


def test_a_method_that_promises_nothing_announces_its_counts(experiment, visits):
    announced = []
    hook = lambda name: lambda mechanism, number, events: announced.append((mechanism, number, dict(events)))  # noqa: E731
    parties(planned(experiment, "fedavg"), visits, before_release=hook).run()
    assert ("counts", 0, {}) in announced
    assert ("fedavg", 3, {}) in announced


@pytest.mark.parametrize("exchange", ["plain", "masked"])
def test_counts_that_a_plan_discloses_are_announced_before_they_leave(exchange, experiment, visits):
    """To who sees them they are unprotected; the others learn nothing from them."""
    made = planned(experiment, "uldp-avg", exchange, method={"weights": "records", "disclose_counts": True})
    announced = []

    def hook(name):
        def before_release(mechanism, number, events):
            announced.append((name, mechanism, number))
            if mechanism == "counts":
                assert isinstance(events["subject/server/zero-out"], Unprotected)
                assert isinstance(events["subject/public/zero-out"], Nothing)
                if name == "south":
                    raise Forbidden("budget-exhausted", "privacy.budget", "nothing is left", "use other data")

        return before_release

    federation, seen = parties(made, visits, before_release=hook), []
    with pytest.raises(Forbidden):
        federation.run(lambda silo, step, answer: seen.append((silo, step)) or answer)
    assert announced == [("north", "counts", 0), ("south", "counts", 0)]
    assert ("north", 2) in seen  # hello, begin
    assert ("south", 2) not in seen


# -- messages that are not as they should be


def flipped(message: bytes) -> bytes:
    place = len(message) - 20
    return message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]


def changed(message: bytes, **parts) -> bytes:
    return dataclasses.replace(Message.from_bytes(message, SERVER, 1 << 30), **parts).to_bytes()


def harm_of(federation, kind: str):
    """Something wrong with the first update of ``south``; steps are hello, begin, and one for each round."""
    kept: dict[str, bytes] = {}

    def signed(numbers: np.ndarray) -> bytes:
        return federation.silos["south"]._here.write(SERVER, "work", write_numbers(numbers))

    def harm(silo, step, answer):
        kept.setdefault(silo, answer)
        if (silo, step) != ("south", 4):
            if step == 3:
                kept[silo] = answer
            return answer
        count = federation.coordinator._numbers
        return {
            "altered": lambda: flipped(answer),
            "cut": lambda: answer[:-1],
            "empty": lambda: b"",
            "noise": lambda: bytes(range(256)),
            "stale": lambda: kept["south"],
            "stale with a new header": lambda: changed(kept["south"], round=2),
            "another's": lambda: kept["north"],
            "another run's": lambda: changed(answer, run="0" * 32),
            "too long": lambda: answer + bytes(1 << 20),
            "not finite": lambda: signed(np.full(count, np.nan)),
            "wrong shape": lambda: signed(np.zeros(count + 1)),
            "another phase's": lambda: changed(answer, phase="exchange"),
            "refusal": lambda: federation.silos["south"].refusal("policy: not today"),
            "nothing": lambda: None,
        }[kind]()

    return harm


@pytest.mark.parametrize(
    "kind",
    [
        "altered",
        "cut",
        "empty",
        "noise",
        "stale",
        "stale with a new header",
        "another's",
        "another run's",
        "too long",
        "not finite",
        "wrong shape",
        "another phase's",
        "refusal",
        "nothing",
    ],
)
def test_a_bad_answer_is_refused_its_silo_named_and_the_others_go_on(kind, experiment, visits):
    made = planned(experiment, "local-record", "plain")
    federation = parties(made, visits)
    outcome = federation.run(harm_of(federation, kind))
    assert outcome.rounds == ROUNDS
    assert [(refusal.round, refusal.silo) for refusal in outcome.refusals] == [(2, "south")]
    assert outcome.refusals[0].reason.startswith("south: ")
    if kind == "refusal":
        assert "policy: not today" in outcome.refusals[0].reason


def test_noise_in_shares_allows_nobody_to_be_missing_from_a_plain_sum(experiment, visits):
    federation = parties(planned(experiment, "uldp-avg", "plain"), visits)
    with refuses("too-few", kind=RoundFailed, number=2, names=["south"]):
        federation.run(harm_of(federation, "nothing"))
    assert federation.coordinator.done == 1


@pytest.mark.parametrize("method", ["higrad", "local-record", "local-group"])
def test_a_sum_with_the_noise_of_all_silos_is_released_with_all_of_them_only(method, experiment, visits):
    """One batch a round and equal silos: the public epsilon counts sqrt(3) times the noise of one silo."""
    one = {"batches_per_round": 1, **({"group_cap": None} if method == "local-group" else {})}
    made = planned(experiment, method, "plain", method=one)
    federation = parties(made, visits)
    with pytest.raises(RoundFailed) as failed:
        federation.run(harm_of(federation, "nothing"))
    assert failed.value.number == 2
    assert federation.coordinator.done == 1


@pytest.mark.parametrize(
    ("method", "numbers", "silos", "needed"),
    [
        ("higrad", {"batches_per_round": 1}, 200, True),
        ("higrad", {"batches_per_round": 2}, 200, False),
        ("higrad", {"batches_per_round": 1}, [200, 200, 100], False),
        ("local-group", {"batches_per_round": 1}, 200, False),  # its cap leaves each silo's own noise
        ("user-ldp", {"batches_per_round": 1}, 200, False),
        ("uldp-avg", {}, 200, True),
        ("dp-fedavg", {}, 200, False),
    ],
)
def test_all_silos_are_needed_exactly_where_a_guarantee_counts_the_noise_of_all(
    method, numbers, silos, needed, experiment
):
    made = planned(experiment, method, method=numbers, data={"records_per_silo": silos})
    assert made.method.claim.requires_all_silos is needed


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (flipped, "bad-signature"),
        (lambda message: message[:-1], "malformed"),
        (lambda message: message + bytes(1 << 24), "too-large"),
        (lambda message: changed(message, round=7), "bad-signature"),
        (lambda message: changed(message, phase="exchange"), "out-of-turn"),
        (lambda message: changed(message, run="x"), "wrong-run"),
    ],
)
def test_a_message_of_the_server_that_was_altered_is_refused_by_the_silo(change, code, experiment, visits):
    federation = parties(planned(experiment, "local-record", "plain"), visits)
    phases = federation.coordinator.phases()
    told = next(phases)
    for _ in range(2):  # hello, begin
        told = phases.send({silo: federation.silos[silo].handle(message) for silo, message in told.items()})
    with refuses(code, kind=Refused, peer=SERVER):
        federation.silos["south"].handle(change(told["south"]))


def test_a_silo_does_a_round_once(experiment, visits):
    federation = parties(planned(experiment, "local-record", "plain"), visits)
    phases = federation.coordinator.phases()
    told = next(phases)
    for _ in range(2):
        told = phases.send({silo: federation.silos[silo].handle(message) for silo, message in told.items()})
    federation.silos["south"].handle(told["south"])
    with refuses("out-of-turn", kind=OutOfTurn, peer="south"):
        federation.silos["south"].handle(told["south"])


def test_a_silo_does_no_round_beyond_the_plan_though_the_server_signs_it(experiment, visits):
    federation = parties(planned(experiment, "local-record", "plain"), visits)
    federation.run()
    more = federation.coordinator._round(ROUNDS + 1)
    with refuses("mismatch", kind=Refused, peer="server"):
        federation.silos["south"].handle(next(more)["south"])


def test_a_model_that_is_not_finite_is_refused_by_the_silo_though_the_server_signs_it(experiment, visits):
    federation = parties(planned(experiment, "local-record", "plain"), visits)
    coordinator, phases = federation.coordinator, federation.coordinator.phases()
    begin = phases.send({silo: federation.silos[silo].handle(message) for silo, message in next(phases).items()})
    coordinator.server = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), coordinator.server)
    work = phases.send({silo: federation.silos[silo].handle(message) for silo, message in begin.items()})
    with refuses("out-of-range", kind=Refused, peer="server"):
        federation.silos["south"].handle(work["south"])


@pytest.mark.parametrize(
    ("silos", "code"),
    [
        (("north", "south", "server"), "unknown-party"),
        (("north", "south", "analyzer"), "unknown-party"),
        (("north", "south", "nobody"), "unknown-party"),
        (("north", "south", "south"), "malformed"),
        (("north", "south"), "wrong-parties"),
        (("north", "west", "server"), "unknown-party"),
    ],
)
def test_a_server_does_not_take_the_place_of_a_silo(silos, code, experiment, visits):
    """Its share of the noise would be missing from the sum, and it would know the masks."""
    federation = parties(planned(experiment, "uldp-avg", "masked"), visits)
    south, coordinator = federation.silos["south"], federation.coordinator
    south._keys.roster["analyzer"] = Identity().public  # a federation may have one
    greeting = Greeting(silos=tuple(silos), plan=mark(coordinator.plan)).to_bytes()
    with refuses(code, kind=Refused, peer=SERVER):
        south.handle(coordinator._desk.write("south", "hello", greeting))


def test_a_silo_does_not_begin_where_it_hears_of_some_silos_only(experiment, visits):
    federation = parties(planned(experiment, "local-record", "plain"), visits)
    coordinator, silos = federation.coordinator, federation.silos
    phases = coordinator.phases()
    heard = {silo: silos[silo].handle(message) for silo, message in next(phases).items()}
    phases.send(heard)
    signed = {silo: Message.from_bytes(heard[silo], silo, 1 << 20).content for silo in ("north", "south")}
    content = join([RoundsDone(done=0).to_bytes(), join_named(signed), packed(coordinator._silos.frozen)])
    with refuses("incomplete", kind=Refused, peer="server"):
        silos["south"].handle(coordinator._desk.write("south", "begin", content))


def test_what_a_silo_told_at_an_earlier_start_is_not_good_at_this_one(experiment, visits):
    """A server that begins twice under one name cannot make silos draw the same coins, or masks, again."""
    federation = parties(planned(experiment, "local-record", "plain"), visits)
    phases = federation.coordinator.phases()
    hello = next(phases)
    begin = phases.send({silo: federation.silos[silo].handle(message) for silo, message in hello.items()})
    before = federation.silos["south"]
    again = SiloSide(before.plan, "south", before._shard, before._keys)
    again.handle(hello["south"])
    with refuses("mismatch", kind=Refused, peer="server"):
        again.handle(begin["south"])


# Each of them could make silos hold out, or use, different people or records.
OTHER_PLANS = {
    "noise": {"method": {"noise_multiplier": 0.9}},
    "data.seed": {"data": {"seed": 5}},
    "data.test_fraction": {"data": {"test_fraction": 0.4}},
    "privacy.delta": {"privacy": {"delta": 1e-7}},
    "title": {"title": "another"},
}


@pytest.mark.parametrize("field", OTHER_PLANS)
def test_parties_that_mean_different_plans_do_not_begin(field, experiment, visits):
    one = parties(planned(experiment, "local-record"), visits)
    side = one.silos["south"]
    other = planned(experiment, "local-record", **OTHER_PLANS[field])
    one.silos["south"] = SiloSide(other, "south", side._shard, side._keys)
    with refuses("too-few", kind=RoundFailed, number=0, names=["south"]):
        one.run()


@pytest.mark.parametrize("field", OTHER_PLANS)
def test_a_server_cannot_lead_silos_with_different_plans_by_telling_each_its_own(field, experiment, visits):
    federation = parties(planned(experiment, "uldp-avg", "masked"), visits)
    coordinator, side = federation.coordinator, federation.silos["south"]
    other = planned(experiment, "uldp-avg", "masked", **OTHER_PLANS[field])
    federation.silos["south"] = south = SiloSide(other, "south", side._shard, side._keys)
    told = next(coordinator.phases())
    greeting = Greeting(silos=coordinator.names, plan=mark(other)).to_bytes()
    told["south"] = coordinator._desk.write("south", "hello", greeting)
    heard = {silo: federation.silos[silo].handle(message) for silo, message in told.items()}
    signed = {silo: Message.from_bytes(answer, silo, 1 << 20).content for silo, answer in heard.items()}
    content = join([RoundsDone(done=0).to_bytes(), join_named(signed), packed(south._made.frozen)])
    for silo, party in federation.silos.items():
        with refuses("plan-mismatch", kind=Refused):
            party.handle(coordinator._desk.write(silo, "begin", content))


def test_records_of_another_form_are_found_before_the_first_round(experiment, visits):
    made = planned(experiment, "local-record")
    federation = parties(made, visits)
    side = federation.silos["west"]
    wider = np.pad(side._shard.train.features, ((0, 0), (0, 1)))
    shard = dataclasses.replace(side._shard, train=dataclasses.replace(side._shard.train, features=wider))
    federation.silos["west"] = type(side)(made, "west", shard, side._keys)
    with refuses("mismatch", kind=RoundFailed, number=0, names=["west"]):
        federation.run()


def test_records_beyond_the_cap_are_left_out_by_the_silo_itself(experiment, visits):
    made = planned(experiment, "uldp-avg", "weighted", exchange=shortened("weighted"))
    more = planned(experiment, "uldp-avg", "plain", privacy={"max_records_per_subject_and_silo": 10})
    federation = parties(made, visits)
    shard = one_silo(load_federation(more, visits), 0)
    side = type(federation.silos["north"])(made, "north", shard, federation.silos["north"]._keys)
    assert np.unique(shard.train.subject, return_counts=True)[1].max() > 4
    assert np.unique(side._shard.train.subject, return_counts=True)[1].max() == 4


@pytest.mark.parametrize(
    "change", [{"method": {"name": "pooled"}}, {"method": {"name": "gossip-sgd", "topology": "ring"}}]
)
def test_what_parties_apart_cannot_do_is_refused(change, experiment, visits):
    made = plan(experiment | {"data": experiment["data"] | {"silos": {"column": "clinic", "count": 3}}} | change)
    with refuses("simulator-only", "method.name", names=[change["method"]["name"]]):
        parties(made, visits)


@pytest.mark.parametrize(
    ("method", "exchange", "more"),
    [
        ("uldp-avg", "masked", {}),
        ("dp-fedavg", "pairwise", {}),
        ("uldp-avg", "weighted", {"drop_outs": 1, "slots": 20}),
        ("uldp-avg", "weighted", shortened("weighted")),
        ("ss-simple", "shuffled", {}),
    ],
)
def test_messages_that_the_server_has_not_signed_are_refused_and_change_nothing(
    method, exchange, more, experiment, visits, few
):
    """Before every message of the server's comes one that was altered, and one that says it is of a later round."""
    frame = few if exchange == "weighted" else visits
    made = planned(experiment, method, exchange, exchange=more)
    federation = parties(made, frame)
    phases = federation.coordinator.phases()
    told, refused = next(phases), 0
    while True:
        answers = {}
        for party, message in told.items():
            read = Message.from_bytes(message, SERVER, 1 << 30)
            altered = dataclasses.replace(read, content=read.content[:-1] + bytes([read.content[-1] ^ 1]))
            for wrong in (altered, dataclasses.replace(altered, round=read.round + 1)):
                with pytest.raises(Refused):
                    federation._handler(party).handle(wrong.to_bytes())
                refused += 1
            answers[party] = federation._handler(party).handle(message)
        try:
            told = phases.send(answers)
        except StopIteration as end:
            outcome = end.value
            break
    assert refused > 30
    assert outcome.rounds == ROUNDS
    assert flat(outcome.model) == pytest.approx(flat(simulated(made, frame).model()), abs=1e-6)


def test_every_method_of_a_server_has_its_place_in_the_matrix():
    assert set(METHODS) == {name for name, kind in ALL.items() if not kind.info.pools and not kind.info.serverless}


# -- people who report for themselves


def shuffled(experiment, **method):
    return planned(experiment, "ss-simple", "shuffled", method={"batch_subjects": 60, **method})


def test_people_without_records_report_as_everybody_does(experiment, visits):
    federation = parties(shuffled(experiment), visits)
    federation.run()
    for k, name in enumerate(federation.names):
        side = federation.silos[name]
        drawn = side.silos.work.draw(1)
        assert sorted([*drawn.present, *drawn.without]) == list(range(k, 60, 3))
        assert len(drawn.without) > 0


def without_south(party, step, answer):
    # hello, begin; the analyzer's two; open; then a round has the key, the reports, and the sums
    return None if (party, step) == ("south", 7) else answer


def test_fillings_take_the_places_of_people_whose_silo_is_silent(experiment, visits):
    outcome = parties(planned(experiment, "ss-double", "shuffled"), visits).run(without_south)
    assert outcome.rounds == ROUNDS
    assert [(refusal.round, refusal.silo) for refusal in outcome.refusals] == [(1, "south")]


def test_reports_that_hide_others_from_the_shuffler_may_not_be_missing(experiment, visits):
    """Fillings hide nobody from the shuffler, for which ss-simple counts everybody who sends."""
    federation = parties(shuffled(experiment), visits)
    with pytest.raises(RoundFailed) as failed:
        federation.run(without_south)
    assert failed.value.number == 1
    assert federation.coordinator.done == 0


@pytest.mark.parametrize("step", [3, 4, 6, 8])
def test_without_the_analyzer_nothing_is_released(step, experiment, visits):
    federation = parties(shuffled(experiment), visits)
    with refuses("too-few", kind=RoundFailed):
        federation.run(lambda party, at, answer: None if (party, at) == ("analyzer", step) else answer)
    assert federation.coordinator.done == 0


def test_the_analyzer_begins_with_what_all_silos_have_told_and_with_nothing_less(experiment, visits):
    federation = parties(shuffled(experiment), visits)
    phases = federation.coordinator.phases()
    told = next(phases)
    for _ in range(3):  # hello, begin; the analyzer's hello
        told = phases.send({party: federation._handler(party).handle(sent) for party, sent in told.items()})
    (message,) = told.values()
    desk, keys = federation.coordinator._desk, federation.analyzer._keys
    content = Message.from_bytes(message, SERVER, 1 << 30).content
    read = Desk(desk.run, "analyzer", keys.identity, keys.roster).read(SERVER, "begin", content)
    signed = named_parts(read, SERVER, federation.names)
    del signed["south"]
    with refuses("incomplete", kind=Refused, peer="server"):
        federation.analyzer.handle(desk.write("analyzer", "begin", join_named(signed)))


def test_a_silo_reports_for_its_own_people_only(experiment, visits):
    federation = parties(planned(experiment, "ss-double", "shuffled"), visits)
    kept = {}

    def harm(party, step, answer):
        kept[party, step] = answer
        return kept["north", 7] if (party, step) == ("south", 7) else answer

    outcome = federation.run(harm)
    (refusal,) = outcome.refusals
    assert refusal.silo == "south"
    assert "strangers" in refusal.reason


def test_reports_have_the_noise_that_the_plan_says(experiment, visits):
    """Without a seed every run draws its own: 40 runs of one round, 5 numbers each, are within 25 % (1e-6)."""
    exact = {"batch_subjects": 60}
    once = {"train": {"rounds": 1}, "seed": None}
    noisy = planned(experiment, "ldp-gaussian", method={**exact, "local_epsilon": 8.0}, **once)
    bare = flat(parties(planned(experiment, "ldp-gaussian", method=exact, **once), visits).run().model)
    drawn = np.array([flat(parties(noisy, visits).run().model) - bare for _ in range(40)])
    assert drawn.std() == pytest.approx(noisy.noise_deviation / 60, rel=0.25)


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"privacy": {"max_silos_per_subject": 2}}, "privacy.max_silos_per_subject"),
        ({"exchange": {"sealed": False}}, "exchange.sealed"),
    ],
)
def test_plans_of_reports_that_parties_apart_cannot_keep_are_refused(sections, field, experiment, visits):
    with refuses("simulator-only", field):
        parties(planned(experiment, "ss-simple", "shuffled", **sections), visits)
