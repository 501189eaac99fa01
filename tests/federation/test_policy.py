"""The silo's policy: what it refuses, by which rule, and what its ledger adds up to."""

from __future__ import annotations

import errno
import json
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tacit.engine.charges import check_goes_on
from tacit.federation.request import Request, received
from tacit.federation.site.policy import RULES, Guard, Head, Policy, Refusal
from tacit.planning.claims import cost
from tacit.planning.settings import read_section
from tacit.privacy import Ledger, View, spent
from tacit.privacy.ledger import place
from tests.federation.worlds import travelled
from tests.refusals import refuses

ANA = "ana@example.org"
SILOS = ("north", "south", "west")
RUN = "0123456789abcdef" * 2
EXPERIMENT = """
[data]
label = "ill"
subjects = { column = "patient", count = 500 }
silos = { count = 3 }
numeric = { age = { mean = 50, scale = 20 } }

[method]
name = "uldp-avg"
noise_multiplier = 8.0

[train]
rounds = 4

[privacy]
max_silos_per_subject = 3

[exchange]
name = "masked"

[evaluation]
status = "paid"
noise_multiplier = 50.0
"""
BOTH = "epsilon_per_run epsilon_in_total"
POLICY = Policy(
    requesters=(ANA,),
    methods=("uldp-avg", "subject-sgd"),
    exchanges=("masked",),
    unit="subject",
    against=("public", "server"),
    delta=1e-5,
    epsilon_per_run=3.0,
    epsilon_in_total=5.0,
    least_records=10,
)


def request(text: str = EXPERIMENT, run: str = RUN, attempt: int = 1, requester: str = ANA) -> Request:
    return Request(received(travelled(text)), run, attempt, requester)


@pytest.fixture
def ledger(tmp_path) -> Path:
    return tmp_path / "visits.ledger.jsonl"


def refused(guard: Guard, asked: Request, *, silos=SILOS, records: int = 100, seen: Head | None = None) -> str:
    with pytest.raises(Refusal) as caught:
        guard.admit(asked, silos, seen, lambda: records)
    assert set(caught.value.rules) <= set(RULES)
    return " ".join(caught.value.rules)


@contextmanager
def refuses_by(*rules: str) -> Iterator[None]:
    with pytest.raises(Refusal) as caught:
        yield
    assert caught.value.rules == rules


def released(rounds: Iterable[int], *guards: Guard) -> None:
    for number in rounds:
        for guard in guards:
            guard.before_release("uldp-avg", number, {})


def replaced(old: str, new: str) -> str:
    assert old in EXPERIMENT
    return EXPERIMENT.replace(old, new)


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        (request(requester="eve@example.org"), "requesters"),
        (request(replaced('"uldp-avg"', '"uldp-sgd"')), "methods"),
        (request(replaced('[exchange]\nname = "masked"', "")), "exchanges"),
        (request(replaced("silos = { count = 3 }", "silos = { count = 4 }")), "silos"),
        (request(replaced("max_silos_per_subject = 3", "max_silos_per_subject = 1")), "silos_per_subject"),
        (request("seed = 7\n" + EXPERIMENT), "seeds"),
        (request(replaced("noise_multiplier = 8.0", "noise_multiplier = 1.0")), BOTH),
        (request(replaced("rounds = 4", "rounds = 400")), BOTH),
        (request(replaced("noise_multiplier = 50.0", "noise_multiplier = 0.1")), BOTH),
    ],
)
def test_what_a_policy_does_not_allow_is_refused_by_name_and_leaves_no_line(asked, rule, ledger):
    with Guard(POLICY, "north", ledger) as guard:
        assert refused(guard, asked) == rule
        assert guard.head.lines == 0


def test_what_a_plan_says_about_its_epsilon_is_not_believed(ledger):
    """A target that only the published accounting reaches, views that leave out the server: the silo computes anew."""
    blind = replaced(
        "max_silos_per_subject = 3",
        'max_silos_per_subject = 3\nunit = "subject"\nagainst = ["public"]\ndelta = 0.5\nconfirm_delta = true',
    )
    weak = blind.replace("noise_multiplier = 8.0", "noise_multiplier = 1.0")
    assert received(travelled(weak)).promise.planned_epsilon() < 3.0  # so it says
    with Guard(POLICY, "north", ledger) as guard:
        assert refused(guard, request(weak)) == BOTH


def test_a_view_that_the_exchange_does_not_speak_of_is_refused(ledger):
    strict = POLICY.model_copy(update={"against": ("server+silos:1",)})
    with Guard(strict, "north", ledger) as guard:
        assert refused(guard, request()) == "against"
        guard.admit(request(replaced('name = "masked"', 'name = "masked"\ncolluding = 1')), SILOS, None, lambda: 100)


def test_a_method_without_noise_needs_a_policy_without_limits(ledger):
    text = replaced('name = "uldp-avg"\nnoise_multiplier = 8.0', 'name = "fedavg"').replace('"masked"', '"plain"')
    free = POLICY.model_copy(update={"methods": ("fedavg",), "exchanges": ("plain",)})
    with Guard(free, "north", ledger) as guard:
        assert refused(guard, request(text)) == BOTH
    unlimited = free.model_copy(update={"epsilon_per_run": float("inf"), "epsilon_in_total": float("inf")})
    with Guard(unlimited, "north", ledger) as guard:
        guard.admit(request(text), SILOS, None, lambda: 100)
        guard.before_release("fedavg", 1, {})
    with Guard(POLICY, "north", ledger) as guard:  # whoever has a limit finds nothing left
        assert refused(guard, request(run="f" * 32)) == "epsilon_in_total"


def test_a_silo_that_knows_its_people_to_be_nowhere_else_may_say_so(ledger):
    apart = POLICY.model_copy(update={"silos_per_subject": 1})
    with Guard(apart, "north", ledger) as guard:
        guard.admit(
            request(replaced("max_silos_per_subject = 3", "max_silos_per_subject = 1")), SILOS, None, lambda: 100
        )


def test_few_records_are_refused(ledger):
    with Guard(POLICY, "north", ledger) as guard:
        assert refused(guard, request(), records=9) == "least_records"


def test_every_release_has_its_line_and_they_add_up_to_the_plan(ledger):
    asked = request()
    with Guard(POLICY, "north", ledger) as guard:
        guard.admit(asked, SILOS, None, lambda: 100)
        for number in range(1, 5):
            guard.before_release("uldp-avg", number, {})
            assert json.loads(ledger.read_text().splitlines()[-1])["round"] == number
        guard.before_release("evaluation", 4, {})
    with Ledger(ledger) as book:
        where = place("subject", "server", "zero-out")
        assert {line["party"] for line in book.lines} == {"north"}
        total = cost(spent(book.lines, where), 1e-5).epsilon
    assert total == pytest.approx(cost(asked.plan.events()[where], 1e-5).epsilon, rel=1e-6)


def test_nothing_is_released_that_was_not_admitted_or_planned(ledger):
    with Guard(POLICY, "north", ledger) as guard:
        with pytest.raises(Refusal):
            guard.before_release("uldp-avg", 1, {})
        guard.admit(request(), SILOS, None, lambda: 100)
        for mechanism, number in (("uldp-avg", 5), ("uldp-avg", 0), ("statistics", 0), ("other", 1)):
            with pytest.raises(Refusal):
                guard.before_release(mechanism, number, {})
        assert guard.head.lines == 0


def test_runs_add_up_over_the_data_set(ledger):
    alone = POLICY.epsilon(lambda where: request().plan.events()[where])
    limit = POLICY.model_copy(update={"epsilon_in_total": alone * 1.2})
    with Guard(limit, "north", ledger) as guard:
        guard.admit(request(), SILOS, None, lambda: 100)
        released(range(1, 5), guard)
    with Guard(limit, "north", ledger) as guard:
        assert refused(guard, request(run="f" * 32)) == "epsilon_in_total"


def test_two_runs_at_once_cannot_both_take_the_last_part(ledger):
    alone = POLICY.epsilon(lambda where: request().plan.events()[where])
    limit = POLICY.model_copy(update={"epsilon_in_total": alone * 1.05})
    with Guard(limit, "north", ledger) as one, Guard(limit, "north", ledger) as two:
        one.admit(request(), SILOS, None, lambda: 100)
        two.admit(request(run="f" * 32), SILOS, None, lambda: 100)
        with refuses_by("epsilon_in_total"):
            released(range(1, 5), one, two)
    with Ledger(ledger) as book:
        spent_in_all = limit.epsilon(lambda where: spent(book.lines, where))
    assert spent_in_all <= limit.epsilon_in_total


def test_rounds_that_are_repeated_after_a_crash_are_counted_again(ledger):
    alone = POLICY.epsilon(lambda where: request().plan.events()[where])
    tight = POLICY.model_copy(update={"epsilon_per_run": alone * 1.01})
    with Guard(tight, "north", ledger) as guard:
        guard.admit(request(), SILOS, None, lambda: 100)
        released((1, 2, 3), guard)
    with Guard(tight, "north", ledger) as guard:
        guard.admit(request(attempt=2), SILOS, None, lambda: 100)
        with refuses_by("epsilon_per_run"):
            released((2, 3, 4), guard)


def test_what_is_said_of_a_silo_is_said_of_a_person_only_where_nobody_is_in_two(ledger):
    text = replaced('"uldp-avg"\nnoise_multiplier = 8.0', '"uldp-naive"\nnoise_multiplier = 5.0')
    asked = request(text.partition("[evaluation]")[0])
    whole = asked.plan.events()
    silo, subject = (cost(whole[place(u, View("public"), "zero-out")], 1e-5).epsilon for u in ("silo", "subject"))
    assert silo < 0.7 * subject
    between = {"methods": ("uldp-naive",), "against": ("public",), "epsilon_per_run": (silo + subject) / 2}
    with Guard(POLICY.model_copy(update=between), "north", ledger) as guard:
        assert refused(guard, asked) == "epsilon_per_run"
    with Guard(POLICY.model_copy(update=between | {"silos_per_subject": 1}), "north", ledger) as guard:
        guard.admit(asked, SILOS, None, lambda: 100)


_WITHOUT_METRICS = EXPERIMENT.partition("[evaluation]")[0]
PAIRED = "seed = 7\n" + _WITHOUT_METRICS.replace("uldp-avg", "dp-fedavg").replace("8.0", "20.0").replace(
    'name = "masked"', 'name = "pairwise"\ngraph = "complete"'
)


def test_no_seed_gives_back_what_pairs_of_silos_share_so_a_repeated_round_is_another_release(ledger):
    more = {"methods": ("dp-fedavg",), "exchanges": ("pairwise",), "seeds": True, "unit": "silo"}
    with Guard(POLICY.model_copy(update=more), "north", ledger) as guard:
        guard.admit(request(PAIRED), SILOS, None, lambda: 100)
        for number in (1, 1, 2):
            guard.before_release("dp-fedavg", number, {})
        assert guard.head.lines == 3


def test_with_a_seed_a_repeated_round_is_the_same_release_and_another_run_must_not_repeat_it(ledger):
    seeded = POLICY.model_copy(update={"seeds": True})
    with Guard(seeded, "north", ledger) as guard:
        guard.admit(request("seed = 7\n" + EXPERIMENT), SILOS, None, lambda: 100)
        guard.before_release("uldp-avg", 1, {})
        guard.before_release("uldp-avg", 1, {})
        assert guard.head.lines == 1
    with Guard(seeded, "north", ledger) as guard:
        assert refused(guard, request("seed = 7\n" + EXPERIMENT, run="f" * 32)) == "seeds"


HIDDEN = "seed = 7\n" + _WITHOUT_METRICS.replace(
    "noise_multiplier = 8.0", 'noise_multiplier = 8.0\nsubject_sample_rate = 0.5\nweights = "records-phantom"'
).replace('name = "masked"', 'name = "weighted"\nprotocol = "paillier"\nhidden_sampling = true').replace(
    "max_silos_per_subject = 3", "max_silos_per_subject = 3\nmax_records_per_subject_and_silo = 5"
)


def test_a_seed_does_not_give_back_who_was_sampled_in_secret_so_a_round_is_not_repeated(ledger):
    """The same noise on the contributions of other people: the difference of both would show them bare."""
    seeded = POLICY.model_copy(update={"seeds": True, "exchanges": ("weighted",), "against": ("public",)})
    with Guard(seeded, "north", ledger) as guard:
        guard.admit(request(HIDDEN), SILOS, None, lambda: 100)
        guard.before_release("uldp-avg", 1, {})
        with refuses_by("seeds"):
            guard.before_release("uldp-avg", 1, {})
    with refuses("cannot-resume", "--resume"):
        check_goes_on(received(travelled(HIDDEN)))
    check_goes_on(received(travelled(HIDDEN.removeprefix("seed = 7\n"))))


@pytest.mark.parametrize(
    ("text", "exchange", "method", "unit"),
    [
        ("seed = 7\n" + EXPERIMENT, "masked", "uldp-avg", "subject"),
        (PAIRED.replace("20.0", "60.0"), "pairwise", "dp-fedavg", "silo"),
    ],
)
def test_with_a_seed_a_round_that_silos_may_leave_is_not_repeated(ledger, text, exchange, method, unit):
    """The same shares of noise in the sum over other silos: the difference of both would show one silo's part."""
    leaving = text.replace(f'name = "{exchange}"', f'name = "{exchange}"\ndrop_outs = 1')
    more = {"seeds": True, "methods": (method,), "exchanges": (exchange,), "unit": unit, "against": ("public",)}
    with Guard(POLICY.model_copy(update=more), "north", ledger) as guard:
        guard.admit(request(leaving), SILOS, None, lambda: 100)
        guard.before_release(method, 1, {})
        with pytest.raises(Refusal) as refusal:
            guard.before_release(method, 1, {})
        assert refusal.value.rules == ("seeds",)
        guard.before_release(method, 2, {})
    check_goes_on(received(travelled(leaving)))


def test_a_request_is_not_taken_twice(ledger):
    with Guard(POLICY, "north", ledger) as guard:
        guard.admit(request(), SILOS, None, lambda: 100)
        assert refused(guard, request()) == "replayed"
        guard.admit(request(attempt=2), SILOS, None, lambda: 100)
        assert refused(guard, request(attempt=2)) == "replayed"
        # the run's name with another plan
        assert refused(guard, request(replaced("rounds = 4", "rounds = 3"), attempt=3)) == "replayed"


def test_a_ledger_that_is_older_than_what_the_server_has_seen_is_refused(ledger):
    with Guard(POLICY, "north", ledger) as guard:
        guard.admit(request(), SILOS, None, lambda: 100)
        guard.before_release("uldp-avg", 1, {})
        backup = ledger.read_bytes()
        guard.before_release("uldp-avg", 2, {})
        seen = guard.head
    with Guard(POLICY, "north", ledger) as guard:
        guard.admit(request(attempt=2), SILOS, seen, lambda: 100)
    ledger.write_bytes(backup)
    with Guard(POLICY, "north", ledger) as guard:
        assert refused(guard, request(attempt=3), seen=seen) == "ledger"
    ledger.unlink()
    with Guard(POLICY, "north", ledger) as guard:
        assert refused(guard, request(attempt=3), seen=seen) == "ledger"


TURNS = (
    EXPERIMENT.partition("\n[exchange]")[0]
    .replace("8.0", "20.0\ncorrelated_noise = { groups = 2, bands = 2 }")
    .replace("max_silos_per_subject = 3", "")
)


def test_rounds_that_are_one_release_together_are_not_begun_a_second_time(ledger):
    """Other noise would be another release of all of them, and one line stands for all."""
    plain = POLICY.model_copy(update={"exchanges": ("plain",)})
    asked = [request(TURNS, attempt=attempt) for attempt in (1, 2, 3)]
    assert asked[0].plan.method.claim.joint
    with Guard(plain, "north", ledger) as guard:
        guard.admit(asked[0], SILOS, None, lambda: 100)
        guard.admit(asked[1], SILOS, None, lambda: 100)  # nothing has left yet
        guard.before_release("uldp-avg", 1, {})
        with Guard(plain, "north", ledger) as later:
            assert refused(later, asked[2]) == "replayed"
        guard.before_release("uldp-avg", 2, {})
    with Guard(plain, "north", ledger) as one, Guard(plain, "north", ledger) as two:
        one.admit(request(TURNS, "e" * 32, 1), SILOS, None, lambda: 100)
        two.admit(request(TURNS, "e" * 32, 2), SILOS, None, lambda: 100)
        one.before_release("uldp-avg", 1, {})
        with refuses_by("replayed"):
            two.before_release("uldp-avg", 3, {})
    seeded = plain.model_copy(update={"seeds": True})
    with Guard(seeded, "north", ledger) as guard:  # with a seed it is the same release
        for attempt in (1, 2):
            guard.admit(request("seed = 7\n" + TURNS, "f" * 32, attempt), SILOS, None, lambda: 100)
            guard.before_release("uldp-avg", 1, {})


def test_a_ledger_with_a_run_that_nobody_admitted_is_refused(ledger):
    """Without the list of admissions, the name of a run could be used for another plan, beside which its lines would
    not count."""
    with Guard(POLICY, "north", ledger) as guard:
        guard.admit(request(), SILOS, None, lambda: 100)
        released(range(1, 5), guard)
    ledger.with_name(f"{ledger.stem}.admissions.jsonl").unlink()
    with Guard(POLICY, "north", ledger) as guard:
        assert refused(guard, request(replaced('"uldp-avg"', '"subject-sgd"'), attempt=2)) == "ledger"
        assert refused(guard, request(attempt=2)) == "ledger"
        guard.admit(request(replaced("8.0", "20.0"), run="f" * 32), SILOS, None, lambda: 100)


def test_nobody_else_of_the_machine_reads_what_was_released(ledger):
    with Guard(POLICY, "north", ledger) as guard:
        guard.admit(request(), SILOS, None, lambda: 100)
    files = (ledger, ledger.with_name(f"{ledger.stem}.admissions.jsonl"))
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    ledger.chmod(0o640)  # whoever makes backups, say
    with Guard(POLICY, "north", ledger):
        assert stat.S_IMODE(ledger.stat().st_mode) == 0o640


def test_an_altered_ledger_is_refused(ledger):
    with Guard(POLICY, "north", ledger) as guard:
        guard.admit(request(), SILOS, None, lambda: 100)
        guard.before_release("uldp-avg", 1, {})
    ledger.write_text(ledger.read_text().replace('"round": 1', '"round": 2'))
    with pytest.raises(Refusal) as caught:
        Guard(POLICY, "north", ledger)
    assert caught.value.rules == ("ledger",)


def test_nothing_leaves_where_the_line_cannot_be_written(ledger, monkeypatch):
    with Guard(POLICY, "north", ledger) as guard:
        guard.admit(request(), SILOS, None, lambda: 100)
        guard.before_release("uldp-avg", 1, {})

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(Refusal) as caught:
            guard.before_release("uldp-avg", 2, {})
        assert caught.value.rules == ("ledger",)
        monkeypatch.undo()
        guard.before_release("uldp-avg", 2, {})
        assert guard.head.lines == 2


def test_what_is_left_is_shown_only_where_the_policy_says_so_and_to_its_requesters(ledger):
    (ana,) = POLICY.requesters
    with Guard(POLICY, "north", ledger) as guard:
        assert guard.left(ana) is None
    with Guard(POLICY.model_copy(update={"budget_shown": True}), "north", ledger) as guard:
        assert guard.left(ana) == POLICY.epsilon_in_total
        assert guard.left("eve@example.org") is None
    without_limit = POLICY.model_copy(update={"budget_shown": True, "epsilon_in_total": float("inf")})
    with Guard(without_limit, "north", ledger) as guard:
        assert guard.left(ana) is None


def test_a_record_is_not_protected_by_what_zeroing_out_its_subject_costs(ledger):
    """The rest of a subject's records may turn its clipped vector around: two clips (specification 9.1)."""
    subject_sgd = (
        EXPERIMENT.replace('"uldp-avg"\nnoise_multiplier = 8.0', '"subject-sgd"\nnoise_multiplier = 5.0')
        .replace("rounds = 4", "rounds = 100")
        .replace("max_silos_per_subject = 3", "max_silos_per_subject = 1")
        .split("[evaluation]")[0]
    )
    loose = {"epsilon_in_total": 100.0, "epsilon_per_run": 10.0, "silos_per_subject": 1}
    for unit, admitted in (("subject", True), ("record", False)):
        with Guard(POLICY.model_copy(update=loose | {"unit": unit}), "north", ledger) as guard:
            if admitted:
                guard.admit(request(subject_sgd), SILOS, None, lambda: 100)
            else:
                assert refused(guard, request(subject_sgd, run="f" * 32)) == "epsilon_per_run"


def test_a_policy_counts_its_own_unit_or_the_replacement_of_one_that_contains_it():
    for unit, apart, relation, expected in (
        ("record", None, "zero-out", ["record/public/zero-out", "subject/public/replace", "silo/public/replace"]),
        ("record", None, "replace", ["record/public/replace"]),
        ("subject", 1, "replace", ["subject/public/replace"]),
        ("subject", None, "zero-out", ["subject/public/zero-out"]),
        ("subject", 1, "zero-out", ["subject/public/zero-out", "silo/public/replace"]),
        ("silo", None, "zero-out", ["silo/public/zero-out"]),
    ):
        change = {"unit": unit, "silos_per_subject": apart, "relation": relation, "against": ("public",)}
        assert POLICY.model_copy(update=change).places() == [expected]


@pytest.mark.parametrize(
    ("line", "code", "names"),
    [
        ('methods = ["uldp-agv"]', "unknown-name", ["uldp-agv"]),
        ('unit = "user"', "unknown-name", ["user"]),
        ("epsilon_per_run = 0.0", "out-of-range", ["0.0"]),
        ('against = ["everyone"]', "unknown-name", ["everyone"]),
        ("epsilons = 3", "unknown-key", []),
    ],
)
def test_a_wrong_policy_file_is_refused_in_one_line(tmp_path, line, code, names):
    right = {
        "requesters": '["a@b.org"]',
        "methods": '["uldp-avg"]',
        "exchanges": '["masked"]',
        "unit": '"subject"',
        "against": '["public"]',
        "delta": "1e-5",
        "epsilon_per_run": "1.0",
        "epsilon_in_total": "inf",
        "least_records": "1",
    }
    file = tmp_path / "POLICY.toml"
    file.write_text("\n".join(f"{key} = {value}" for key, value in right.items()))
    assert read_section(file, Policy, "POLICY.toml").epsilon_in_total == float("inf")
    key, _, value = line.partition(" = ")
    file.write_text("\n".join(f"{k} = {v}" for k, v in (right | {key: value}).items()))
    with refuses(code, key, names=names, file=str(file)):
        read_section(file, Policy, "POLICY.toml")


MIXED = POLICY.model_copy(
    update={
        "methods": ("uldp-avg", "ss-simple"),
        "exchanges": ("masked", "shuffled"),
        "silos_per_subject": 1,
        "epsilon_per_run": 100.0,
        "epsilon_in_total": 200.0,
    }
)
SHUFFLED = """
[data]
label = "ill"
subjects = { column = "patient", count = 500 }
silos = { count = 3 }
numeric = { age = { mean = 50, scale = 20 } }

[method]
name = "ss-simple"
local_epsilon = 30.0
value_range = 0.5
batch_subjects = 60

[train]
rounds = 2

[privacy]
max_silos_per_subject = 1

[exchange]
name = "shuffled"
"""


@pytest.mark.parametrize("against", [("analyzer", "shuffler"), ("public", "server"), ("shuffler+analyzer",)])
def test_runs_of_different_exchanges_add_up_for_every_party_that_is_in_one_of_them(ledger, against):
    policy = MIXED.model_copy(update={"against": against})
    masked = replaced("max_silos_per_subject = 3", "max_silos_per_subject = 1")
    with Guard(policy, "north", ledger) as guard:
        before = policy.epsilon(lambda where: spent(guard._ledger.lines, where))
        for text, run, mechanism, rounds in ((masked, "a" * 32, "uldp-avg", 4), (SHUFFLED, "b" * 32, "ss-simple", 2)):
            guard.admit(request(text, run), SILOS, None, lambda: 100)
            for number in range(1, rounds + 1):
                guard.before_release(mechanism, number, {})
            after = policy.epsilon(lambda where: spent(guard._ledger.lines, where))
            assert before < after < float("inf")
            before = after
