"""What a masked sum gives away, and what becomes of messages that are not as they should be."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tacit.crypto import BadShares, BadSignature, Identity, Refused, Replayed
from tacit.crypto.crypto_errors import Misused
from tacit.exchange.masked import OF_OWN, OF_PAIRS, PHASES, from_bytes, to_bytes
from tacit.exchange.post import SERVER, OutOfTurn, TooFew, join, join_named, named_parts, parted
from tests.exchange.test_masked_sum import session, streams, vanishing, vectors
from tests.refusals import refuses

NUMBERS = 4096


def transcript(run, number: int, sent: np.ndarray) -> dict[tuple[str, str], bytes]:
    """Everything that the silos send to the server in a round."""
    seen = {}

    def carry(phase: str, sender: str, recipient: str, message: bytes) -> bytes:
        if recipient == SERVER:
            seen[phase, sender] = message
        return message

    run.sum(number, sent, streams(len(sent)), carry)
    return seen


def sent_vectors(run, seen: dict[tuple[str, str], bytes]) -> list[np.ndarray]:
    return [from_bytes(seen["vectors", silo][64:], run.terms.bits) for silo in run.terms.silos]


def uniform(elements: np.ndarray, bits: int) -> float:
    """The p-value of a chi-square test that all bytes are uniform."""
    counts = np.bincount(np.frombuffer(to_bytes(elements, bits), np.uint8), minlength=256)
    return float(stats.chisquare(counts).pvalue)


def test_masked_vectors_are_uniform_and_so_are_their_differences():
    """For inputs with equal sums: each silo's message, the difference of two rounds with the same input (so that reused
    masks would show), of two runs, and sums of all but one. 1e-6 for each of 40 tests."""
    run, other = session(numbers=NUMBERS), session(numbers=NUMBERS)
    zeros = np.zeros((5, NUMBERS), np.int64)
    moved = zeros.copy()
    moved[0], moved[1] = 999, -999
    rounds = [sent_vectors(run, transcript(run, 1, zeros)), sent_vectors(run, transcript(run, 2, zeros))]
    rounds.append(sent_vectors(run, transcript(run, 3, moved)))
    rounds.append(sent_vectors(other, transcript(other, 1, moved)))
    mask = np.uint64(2**run.terms.bits - 1)
    for first, second in ((0, 1), (1, 2), (0, 3)):
        for silo in range(5):
            assert uniform(rounds[first][silo], run.terms.bits) > 1e-6
            difference = (rounds[first][silo] - rounds[second][silo]) & mask
            assert uniform(difference, run.terms.bits) > 1e-6
    for left_out in range(5):
        partial = sum((rounds[0][silo] for silo in range(5) if silo != left_out), np.zeros(NUMBERS, np.uint64)) & mask
        assert uniform(partial, run.terms.bits) > 1e-6
    # the control: a reused mask is seen at once
    again = (rounds[0][0] + np.uint64(5) - rounds[0][0]) & mask
    assert uniform(again, run.terms.bits) < 1e-6


def test_without_its_own_mask_opened_even_the_sum_stays_hidden():
    run = session(numbers=NUMBERS)
    total = sum(sent_vectors(run, transcript(run, 1, np.zeros((5, NUMBERS), np.int64))), np.zeros(NUMBERS, np.uint64))
    assert uniform(total & np.uint64(2**run.terms.bits - 1), run.terms.bits) > 1e-6


def test_of_no_peer_both_kinds_of_share_are_shown():
    run = session(drop_outs=2)
    seen = {}
    gone = {("vectors", run.terms.silos[1])}

    def carry(phase: str, sender: str, recipient: str, message: bytes) -> bytes | None:
        if recipient == SERVER and phase == "unmasking":
            seen[sender] = named_parts(message[64:], sender, run.terms.silos)
        return vanishing(gone)(phase, sender, recipient, message)

    run.sum(1, vectors(5, 7), streams(5), carry)
    assert len(seen) == 4
    for shown in seen.values():
        kinds = {peer: share[:1] for peer, share in shown.items()}
        assert kinds.pop(run.terms.silos[1]) == OF_PAIRS
        assert set(kinds.values()) == {OF_OWN}
        assert {len(share) for share in shown.values()} == {1 + 4 + 33}
    # a silo answers no second time in the round
    with pytest.raises(OutOfTurn):
        run.silos[run.terms.silos[0]].receive(b"")


def test_a_silos_secrets_end_with_its_vector():
    """Whoever breaks into a silo after a round, with all that the server has seen, cannot take its masks off."""
    run, kept = session(drop_outs=1), []
    silo = run.silos[run.terms.silos[0]]

    def carry(phase: str, sender: str, recipient: str, message: bytes) -> bytes | None:
        if phase == "shares" and recipient == silo.name:
            kept.append(silo._secrets.own)
        if phase == "survivors":
            assert silo._secrets is None
            assert not silo._vector.size
        return message

    run.sum(1, vectors(5, 7), streams(5), carry)
    with refuses("wiped", "secret", Misused):
        kept[0].expose()
    assert silo._shares == {}


def test_a_server_that_tells_two_stories_is_found_out():
    """The server tells some silos that one has vanished, and keeps its vector: it would get both kinds of share."""
    run = session(drop_outs=2)
    names = sorted(run.terms.silos)
    post = run.server._post

    def carry(phase: str, sender: str, recipient: str, message: bytes) -> bytes:
        if phase == "survivors" and sender == SERVER and recipient in names[:2]:
            return post.write(recipient, phase, join_named(dict.fromkeys(names[:4], b"")))
        return message

    with refuses("equivocation", kind=Refused, peer="silo 3 (clinic 2)"):
        run.sum(1, vectors(5, 7), streams(5), carry)
    assert run.server.total is None


@pytest.mark.parametrize("phase", ["shares", "vectors", "survivors", "unmasking"])
def test_a_server_that_lists_too_few_silos_gets_no_answer(phase):
    run = session(drop_outs=1)
    post = run.server._post

    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes:
        if at == phase and sender == SERVER and recipient == run.terms.silos[0]:
            listed = named_parts(message[64:], SERVER, run.terms.silos)
            fewer = dict(list(listed.items())[:2] if phase == "vectors" else list(listed.items())[:3])
            return post.write(recipient, phase, join_named(fewer))
        return message

    with refuses("too-few", kind=TooFew, peer="server"):
        run.sum(1, vectors(5, 7), streams(5), carry)


# -- messages that are not as they should be


def flipped(message: bytes) -> bytes:
    place = len(message) // 2
    return message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]


def truncated(message: bytes) -> bytes:
    return message[:-1]


def unsigned(message: bytes) -> bytes:
    return message[64:]


def signed_by_a_stranger(message: bytes) -> bytes:
    run = session()
    run.server.begin(1)
    place = run.server._post.place(run.terms.silos[2], SERVER, "vectors")
    return Identity().sign(place, message[64:])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("harm", [flipped, truncated, unsigned, signed_by_a_stranger])
def test_a_silos_message_that_was_altered_is_refused_and_the_silo_named(phase, harm):
    run = session()

    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes:
        return harm(message) if (at, sender) == (phase, run.terms.silos[2]) else message

    with refuses("bad-signature", kind=BadSignature, peer="silo 3 (clinic 2)"):
        run.sum(1, vectors(5, 7), streams(5), carry)
    assert run.server.total is None


@pytest.mark.parametrize("phase", PHASES[1:])
@pytest.mark.parametrize("harm", [flipped, truncated, unsigned])
def test_a_message_of_the_server_that_was_altered_is_refused(phase, harm):
    run = session()

    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes:
        hit = at == phase and sender == SERVER and recipient == run.terms.silos[2]
        return harm(message) if hit else message

    with refuses("bad-signature", kind=BadSignature, peer=SERVER):
        run.sum(1, vectors(5, 7), streams(5), carry)
    assert run.server.total is None


@pytest.mark.parametrize("phase", PHASES)
def test_messages_of_an_earlier_round_are_refused(phase):
    run = session()
    earlier = transcript(run, 1, vectors(5, 7))

    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes:
        return earlier[at, sender] if (at, sender) == (phase, run.terms.silos[3]) else message

    with refuses("bad-signature", kind=BadSignature, peer="silo 4 (clinic 3)"):
        run.sum(2, vectors(5, 7), streams(5), carry)
    assert run.server.total is None
    with refuses("out-of-turn", kind=OutOfTurn, peer="server"):
        run.sum(2, vectors(5, 7), streams(5))


@pytest.mark.parametrize("phase", PHASES[1:])
def test_messages_of_another_phase_are_refused(phase):
    run, before = session(), {}

    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes:
        late = before.get((sender, recipient))
        before[sender, recipient] = message
        return late if at == phase and sender == run.terms.silos[1] else message

    with refuses("bad-signature", kind=BadSignature, peer="silo 2 (clinic 1)"):
        run.sum(1, vectors(5, 7), streams(5), carry)
    assert run.server.total is None


def test_a_second_message_is_a_replay_and_a_late_one_is_out_of_turn():
    run = session(drop_outs=1)
    run.server.begin(1)
    first = {n: s.begin(1, v, r) for (n, s), v, r in zip(run.silos.items(), vectors(5, 7), streams(5), strict=True)}
    run.server.receive(run.terms.silos[0], first[run.terms.silos[0]])
    with refuses("replayed", kind=Replayed, peer="silo 1 (clinic 0)"):
        run.server.receive(run.terms.silos[0], first[run.terms.silos[0]])
    for silo in run.terms.silos[1:4]:  # the first message stands, and the others go on
        run.server.receive(silo, first[silo])
    run.server.advance()
    with refuses("out-of-turn", kind=OutOfTurn, peer="silo 5 (clinic 4)"):
        run.server.receive(run.terms.silos[4], first[run.terms.silos[4]])


def test_silos_with_other_terms_do_not_understand_each_other():
    one, two = session(numbers=7), session(numbers=8)
    assert one.terms.place.split("/")[1] != two.terms.place.split("/")[1]


def test_keys_that_the_server_puts_in_the_middle_are_refused():
    run = session()
    stranger = Identity()

    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes:
        if at == "shares" and sender == SERVER:
            listed = named_parts(message[64:], SERVER, run.terms.silos)
            victim = run.terms.silos[1]
            listed[victim] = stranger.sign(run.server._post.place(victim, "*", "keys"), bytes(range(64)))
            return run.server._post.write(recipient, at, join_named(listed))
        return message

    with refuses("bad-signature", kind=BadSignature, peer="silo 2 (clinic 1)"):
        run.sum(1, vectors(5, 7), streams(5), carry)


def test_a_wrong_share_gives_no_sum():
    run = session()
    liar = run.terms.silos[2]

    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes:
        if (at, sender) == ("unmasking", liar):
            shown = named_parts(message[64:], liar, run.terms.silos)
            shown[run.terms.silos[0]] = flipped(shown[run.terms.silos[0]])
            return run.silos[liar]._post.write(SERVER, at, join_named(shown))
        return message

    with refuses("bad-shares", kind=BadShares, names=["clinic 0"]):
        run.sum(1, vectors(5, 7), streams(5), carry)
    assert run.server.total is None


def test_parts_come_back_and_broken_ones_are_refused():
    assert parted(b"", "x") == []
    for wrong in (b"\x00", bytes(7) + b"\x05abc"):
        with refuses("malformed", kind=Refused, peer="north"):
            parted(wrong, "north")
    strangers = ([b"b", b"", b"a", b""], [b"a", b"", b"a", b""], [b"z", b""])
    for parts in (*strangers, [b"a"], [b"\xff", b""]):
        with refuses("unknown-party" if parts in strangers else "malformed", kind=Refused, peer="north"):
            named_parts(join(parts), "north", ["a", "b"])
