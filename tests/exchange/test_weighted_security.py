"""What a weighted sum gives away: the three leaks of the published protocol (specification 4.6), and altered
messages."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gmpy2 import invert, mpz, powmod
from scipy import stats

from tacit.crypto import BadSignature, Identity, Refused, Replayed, seal
from tacit.exchange import PersonVectors, Session
from tacit.exchange.post import SERVER, join, join_named, named_parts, parted
from tacit.families.weighting.exchange import Weighted
from tacit.families.weighting.paillier import insecure_key_for_tests
from tacit.families.weighting.paillier_silo import PaillierSilo
from tests.exchange.test_masked_security import flipped, truncated, unsigned
from tests.exchange.test_weighted_sum import (
    COUNTS,
    INSECURE,
    KEY,
    NUMBERS,
    PEOPLE,
    PRECISION,
    Insecure,
    contributions,
    expected,
    groups_of,
    members,
    session,
    streams,
    terms,
)
from tests.refusals import refuses


class Seen:
    """A carrier that keeps everything that silos send to the server."""

    def __init__(self) -> None:
        self.messages: dict[tuple[str, str], bytes] = {}

    def __call__(self, phase: str, sender: str, recipient: str, message: bytes) -> bytes:
        self.messages[phase, sender if recipient == SERVER else recipient + "<"] = message
        return message

    def ciphertexts(self, silo: str) -> list[mpz]:
        return KEY.public.ciphertexts(self.messages["sums", silo][64:]).values


def product(seen: Seen, silos: tuple[str, ...]) -> list[mpz]:
    """What the server decrypts: the product over silos of each output."""
    columns = zip(*(seen.ciphertexts(silo) for silo in silos), strict=True)
    return [math.prod(column) % KEY.public.modulus for column in columns]


def randomness(ciphertext: mpz) -> mpz:
    """The n-th root modulo n of a ciphertext's randomness, which the owner of the key can read."""
    one, two = (half.prime for half in KEY.factors)
    order = (one - 1) * (two - 1)
    return powmod(ciphertext % KEY.public.n, invert(KEY.public.n, order), KEY.public.n)


# -- leak A: V modulo C_LCM


def residues(variant: str, value: int, rounds: int = 150) -> np.ndarray:
    """V mod C_LCM over C_LCM, with one person of 6 records (7 with the phantom) who adds ``value`` steps."""
    made = terms(noise=2.0, numbers=8)
    counts = np.zeros((3, PEOPLE), np.int64)
    counts[0, 0], counts[1, 0] = 4, 2
    run = session(made, counts)
    if variant == "published":  # z' = Encode(z) C_LCM
        for silo in run.silos.values():
            own = silo._packed_noise

            def multiples(own=own) -> list[int]:
                silo_terms, drawn = made, own()
                unpacked = [number for value in drawn for number in run.server._unpacked(value)]
                whole = [round(number / silo_terms.common) * silo_terms.common for number in unpacked]
                return [
                    sum(n << (silo_terms.width * k) for k, n in enumerate(whole[i : i + silo_terms.packed]))
                    for i in range(0, len(whole), silo_terms.packed)
                ]

            silo._packed_noise = multiples
    one = PersonVectors(np.array([0]), np.full((1, 8), value))
    nobody = PersonVectors(np.zeros(0, int), np.zeros((0, 8), np.int64))
    found = []
    for number in range(1, rounds // 8 + 2):
        run.sum(number, [one, nobody, nobody], streams(number))
        found += [total % made.common / made.common for total in run.server.total]
    return np.array(found)


def test_a_the_sum_modulo_the_common_multiple_says_nothing_about_the_data():
    ours, other = residues("ours", 1001), residues("ours", 1000)
    assert stats.kstest(ours, "uniform").pvalue > 1e-4
    assert stats.kstest(other, "uniform").pvalue > 1e-4
    assert stats.ks_2samp(ours, other).pvalue > 1e-4


def test_a_control_the_published_noise_leaves_it_bare():
    """As published, 4 / 7 of 1001 and of 1000 steps have different remainders, and noise does not touch them."""
    published, other = residues("published", 1001, 40), residues("published", 1000, 40)
    assert len(set(published)) == 1
    np.testing.assert_allclose(published, 4 * 1001 / 7 % 1, atol=1e-9)
    np.testing.assert_allclose(other, 4 * 1000 / 7 % 1, atol=1e-9)
    assert stats.kstest(published, "uniform").pvalue < 1e-4


# -- leak B: the randomness of what is sent


def test_b_randomness_of_equal_sums_differs_and_cannot_be_computed_from_what_the_server_knows(monkeypatch):
    run, people = session(), contributions()
    first, second = Seen(), Seen()
    run.sum(1, people, streams(), first)
    run.sum(2, people, streams(), second)
    one, two = product(first, run.terms.silos), product(second, run.terms.silos)
    assert run.server._key.decrypt(run.server._key.public.ciphertexts(b"".join(map(packed_bytes, one))))
    roots = [randomness(c) for c in (*one, *two)]
    assert len(set(roots)) == len(roots)
    # the server knows the randomness of Enc(1 / B_u); the published computation leaves that in the product, for ours
    # the same guess of all that silos know does not help
    guesses = [randomness(c) for c in unblinded(run, people)]
    assert not set(guesses) & set(roots)
    # the control: without re-randomising, the guess is right
    for silo in run.silos.values():
        monkeypatch.setattr(silo, "_rerandomised", lambda sums: sums)
    bare = Seen()
    run.sum(3, people, streams(), bare)
    assert [randomness(c) for c in product(bare, run.terms.silos)] == guesses


@pytest.mark.parametrize("curious", range(3))
def test_b_the_server_and_a_silo_together_cannot_compute_the_randomness_of_the_others(curious, monkeypatch):
    """What a curious silo adds to the randomness is known to both: that of the other silos must cover every output."""
    run, people, seen = session(), contributions(), Seen()
    monkeypatch.setattr(run.silos[f"clinic {curious}"], "_rerandomised", lambda sums: sums)
    run.sum(1, people, streams(), seen)
    guesses = [randomness(c) for c in unblinded(run, people)]
    assert not set(guesses) & {randomness(c) for c in product(seen, run.terms.silos)}


def packed_bytes(ciphertext: mpz) -> bytes:
    return ciphertext.to_bytes(KEY.public.ciphertext_bytes, "big")


def unblinded(run, people: list[PersonVectors]) -> list[mpz]:
    """The product of weighted sums as computed, without re-randomising."""
    total = [mpz(1)] * run.terms.outputs
    for silo, own in zip(run.silos.values(), people, strict=True):
        padded = np.zeros((run.terms.outputs * run.terms.packed, len(own.places)), np.int64)
        padded[: run.terms.numbers] = own.vectors.T
        bases = type(KEY.encrypt([]))(KEY.public, [silo._bases[place] for place in own.places.tolist()])
        sums = bases.packed_sums(padded, run.terms.packed, run.terms.width)
        total = [a * b % KEY.public.modulus for a, b in zip(total, sums, strict=True)]
    return total


def test_b_a_single_silos_message_is_uniform_under_its_masks():
    """Bits of what one silo sends, though content and randomness are the same in every round."""
    run, people, bits = session(), contributions(), []
    for number in range(1, 30):
        seen = Seen()
        run.sum(number, people, streams(), seen)
        values = seen.ciphertexts("clinic 0")
        bits += [float(value / KEY.public.modulus) for value in values]
        # not even the owner of the key reads a silo's own sum out of it
    assert stats.kstest(bits, "uniform").pvalue > 1e-4


def test_masks_are_fresh_in_every_round():
    """The quotient of a silo's messages of two rounds with the same content: of reused masks it would contain 0."""
    run, people, found = session(), contributions(), []
    rounds = [Seen() for _ in range(20)]
    for number, seen in enumerate(rounds, start=1):
        run.sum(number, people, streams(), seen)
    for one, two in zip(rounds[::2], rounds[1::2], strict=True):
        for silo in run.terms.silos[:2]:  # the third is determined by these
            pairs = zip(one.ciphertexts(silo), two.ciphertexts(silo), strict=True)
            quotients = [a * invert(b, KEY.public.modulus) % KEY.public.modulus for a, b in pairs]
            found += KEY.decrypt(KEY.public.ciphertexts(b"".join(map(packed_bytes, quotients))))
    assert stats.kstest(np.array([value / int(KEY.public.n) + 0.5 for value in found]), "uniform").pvalue > 1e-4


# -- leak C: who is absent


def test_c_people_without_records_look_like_others():
    seen = Seen()
    run = session(carry=seen)
    inverses = run.server._inverses
    assert len(set(inverses)) == PEOPLE  # nobody's is 0, also of person 4 who has no record anywhere
    assert all(inverse != 0 for inverse in inverses)
    # over many setups r_u N_u is uniform, for the absent person as for the others
    shares = {4: [], 2: []}
    for _ in range(40):
        other = session()
        for place in shares:
            shares[place].append(float(invert(other.server._inverses[place], KEY.public.n) / KEY.public.n))
    for found in shares.values():
        assert stats.kstest(found, "uniform").pvalue > 1e-4


def test_c_control_without_the_phantom_record_the_server_sees_who_is_absent(monkeypatch):
    begin = PaillierSilo.open

    def as_published(silo: PaillierSilo) -> bytes:
        silo._counts.of_slots = silo._counts.of_slots - (silo.name == silo.terms.leader)
        return begin(silo)

    monkeypatch.setattr(PaillierSilo, "open", as_published)
    with refuses("out-of-range", kind=Refused):
        session()
    present = COUNTS + (np.arange(PEOPLE) == 4)
    monkeypatch.undo()
    assert session(counts=present).server._inverses is not None


def test_c_messages_of_all_sizes_are_alike_for_a_silo_with_nobody():
    sizes = []
    for counts in (COUNTS, np.zeros_like(COUNTS)):
        seen = Seen()
        run = session(counts=counts, carry=seen)
        run.sum(1, contributions(counts=counts), streams(), seen)
        sizes.append({place: len(message) for place, message in seen.messages.items()})
    assert sizes[0] == sizes[1]


def test_blinded_counts_of_single_silos_are_uniform():
    size, found = KEY.public.bits // 8, []
    for _ in range(20):
        seen = Seen()
        session(carry=seen)
        content = seen.messages["counts", "clinic 1"][64:]
        found += [
            int.from_bytes(content[i : i + size], "big") / int(KEY.public.n) for i in range(0, len(content), size)
        ]
    assert stats.kstest(found, "uniform").pvalue > 1e-4


# -- hidden sampling


def test_slots_are_in_random_order_and_freshly_encrypted():
    """Else silos, who know which one they take, would know who is in a round."""
    run = session(terms(rate=0.25, hidden=True))
    places, seen = [], set()
    for _ in range(40):
        for inverse, own in zip(run.server._inverses, run.server._slots(), strict=True):
            contents = KEY.decrypt(KEY.public.ciphertexts(b"".join(own)))
            assert sorted(content % KEY.public.n for content in contents) == [0, 0, 0, inverse]
            places.append(np.flatnonzero(contents)[0])
            seen |= set(own)
    assert len(seen) == 40 * PEOPLE * 4
    assert stats.chisquare(np.bincount(places, minlength=4)).pvalue > 1e-4


def test_silos_take_the_same_slots_and_others_in_every_round():
    """Else the server, who knows what is in which slot, would know who is in a round."""
    run, taken = session(terms(rate=0.25, hidden=True)), []
    for number in range(1, 21):
        run.sum(number, contributions(), streams())
        choices = {tuple(silo._transfer._choices) for silo in run.silos.values()}
        assert len(choices) == 1
        taken += choices.pop()
    assert stats.chisquare(np.bincount(taken, minlength=4)).pvalue > 1e-4


# -- messages that are not as they should be

SETUP = ["keys", "seed", "counts", "weights"]


@pytest.mark.parametrize("phase", SETUP)
@pytest.mark.parametrize("harm", [flipped, truncated, unsigned])
def test_messages_of_setup_that_were_altered_are_refused(phase, harm):
    for sender, recipient, named in (("clinic 1", SERVER, "clinic 1"), (SERVER, "clinic 1", SERVER)):
        if phase == "keys" and sender == SERVER:
            continue

        def carry(at: str, frm: str, to: str, message: bytes, place=(sender, recipient)) -> bytes:
            return harm(message) if at == phase and (frm, to) == place else message

        with refuses("bad-signature", kind=BadSignature, peer=named):
            session(carry=carry)


@pytest.mark.parametrize("harm", [flipped, truncated, unsigned])
@pytest.mark.parametrize("hidden", [False, True])
def test_messages_of_a_round_that_were_altered_are_refused_and_nothing_is_released(harm, hidden):
    run, people = session(terms(rate=0.5, hidden=hidden)), contributions()
    number = 0
    for phase in ("ready", "requests", "sums") if hidden else ("sums",):
        for sender, recipient in (("clinic 2", SERVER), (SERVER, "clinic 2")):
            if sender == SERVER and (phase == "ready" or not hidden):
                continue

            def carry(at: str, frm: str, to: str, message: bytes, place=(phase, sender, recipient)) -> bytes:
                return harm(message) if (at, frm, to) == place else message

            number += 1
            with refuses("bad-signature", kind=BadSignature, peer=sender):
                run.sum(number, people, streams(), carry)
            assert run.server.total is None


def test_messages_of_an_earlier_round_and_second_ones_are_refused():
    run, people, earlier = session(), contributions(), Seen()
    run.sum(1, people, streams(), earlier)

    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes:
        return earlier.messages[at, sender] if sender == "clinic 0" else message

    with refuses("bad-signature", kind=BadSignature, peer="clinic 0"):
        run.sum(2, people, streams(), carry)
    assert run.server.total is None
    run.server.begin(3)
    message = run.silos["clinic 0"].begin(3, groups_of(people[0]), streams()[0])
    run.server.receive("clinic 0", message)
    with refuses("replayed", kind=Replayed, peer="clinic 0"):
        run.server.receive("clinic 0", message)
    with refuses("bad-signature", kind=BadSignature, peer="clinic 1"):
        run.server.receive("clinic 1", message)


def test_a_key_of_another_length_and_a_short_one_are_refused():
    class TooShort(Insecure):
        secret = insecure_key_for_tests(256)

    class Checked(Insecure):
        silo = Weighted.silo

    with refuses("bad-key", kind=Refused, peer="server"):
        Session(TooShort(protocol="paillier", precision=PRECISION), terms(), members(COUNTS))
    # and without the door for tests, a silo takes no key so short
    with refuses("bad-key", kind=Refused):
        Session(Checked(protocol="paillier", precision=PRECISION), terms(), members(COUNTS))


def test_keys_that_the_server_puts_in_the_middle_are_refused():
    run = object.__new__(Session)

    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes:
        if (at, sender, recipient) != ("seed", SERVER, "clinic 0"):
            return message
        public, keys = parted(message[64:], SERVER)
        listed, post = named_parts(keys, SERVER, run.terms.silos), run.server._post
        listed["clinic 1"] = Identity().sign(post.place("clinic 1", "*", "keys"), bytes(range(64)))
        return post.write(recipient, at, join([public, join_named(listed)]))

    with refuses("bad-signature", kind=BadSignature, peer="clinic 1"):
        run.__init__(INSECURE, terms(), members(COUNTS), carry=carry)


def test_a_seed_that_the_server_puts_in_the_middle_is_refused():
    """Anybody can seal for a silo; with a seed of its own the server would know all r_u, and with them N_u."""
    run, keys = object.__new__(Session), {}

    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes:
        if at == "keys":
            keys[sender] = message[64:96]
        if (at, sender, recipient) != ("counts", SERVER, "clinic 1"):
            return message
        place = run.server._post.place("clinic 0", recipient, "seed")
        forged = Identity().sign(place, seal(bytes(32), keys[recipient], place))
        return run.server._post.write(recipient, at, forged)

    with refuses("bad-signature", kind=BadSignature, peer="clinic 0"):
        run.__init__(INSECURE, terms(), members(COUNTS), carry=carry)


def test_a_stranger_cannot_speak_for_a_silo():
    stranger = Identity()
    run = session()
    run.server.begin(1)
    place = run.server._post.place("clinic 0", SERVER, "sums")
    with refuses("bad-signature", kind=BadSignature, peer="clinic 0"):
        run.server.receive("clinic 0", stranger.sign(place, b"anything"))


def test_two_rounds_with_equal_sums_look_alike_to_the_server():
    """Contributions that differ, with one sum: what the server decrypts is the same, what it sees of silos is fresh."""
    counts = np.full((3, PEOPLE), 1)
    run = session(terms(), counts)
    vectors = np.zeros((PEOPLE, NUMBERS), np.int64)
    one = [PersonVectors(np.arange(PEOPLE), vectors + shift) for shift in (500, -500, 0)]
    two = [PersonVectors(np.arange(PEOPLE), vectors + shift) for shift in (0, 0, 0)]
    first, second = Seen(), Seen()
    np.testing.assert_allclose(run.sum(1, one, streams(), first), expected(one, counts), atol=1e-12)
    np.testing.assert_array_equal(run.sum(2, two, streams(), second), np.zeros(NUMBERS))
    for silo in run.terms.silos:
        assert not set(first.ciphertexts(silo)) & set(second.ciphertexts(silo))
