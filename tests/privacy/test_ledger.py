from __future__ import annotations

import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tacit.privacy.accounting.events import Composed, Gaussian, Largest, Nothing, PoissonSampled, Repeated, Unprotected
from tacit.privacy.ledger import Ledger, LedgerError, spent
from tests.refusals import refuses

SAMPLED = PoissonSampled(0.1, Gaussian(2.0))


def release(ledger: Ledger, number: int, event=SAMPLED, *, run: str = "a", joint: bool = False) -> None:
    events = {"subject/public": event}
    ledger.append(run=run, party="server", round=number, mechanism="sum", step=number, events=events, joint=joint)


def filled(path: Path, rounds: int = 3) -> Path:
    with Ledger(path) as ledger:
        for number in range(1, rounds + 1):
            release(ledger, number)
    return path


def test_lines_survive_and_the_chain_goes_on_after_reopening(tmp_path):
    path = filled(tmp_path / "ledger.jsonl")
    with Ledger(path) as ledger:
        release(ledger, 4)
    assert [line["round"] for line in Ledger(path).lines] == [1, 2, 3, 4]


@pytest.mark.parametrize("change", ["edit", "remove", "swap", "garbage", "number"])
def test_an_altered_ledger_is_noticed(tmp_path, change):
    path = filled(tmp_path / "ledger.jsonl")
    lines = path.read_text().splitlines()
    if change == "edit":
        lines[1] = lines[1].replace('"round": 2', '"round": 7')
    elif change == "remove":
        del lines[1]
    elif change == "swap":
        lines[0], lines[1] = lines[1], lines[0]
    else:
        lines[1] = "not json" if change == "garbage" else "7"
    path.write_text("\n".join(lines) + "\n")
    with refuses("altered", kind=LedgerError):
        Ledger(path)


def test_a_line_cut_off_by_a_crash_is_dropped_and_the_chain_goes_on(tmp_path):
    path = filled(tmp_path / "ledger.jsonl")
    path.write_bytes(path.read_bytes() + b'{"party": "ser')
    with Ledger(path) as ledger:
        assert len(ledger.lines) == 3
        release(ledger, 4)
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


def test_a_whole_line_that_lacks_only_its_end_is_kept(tmp_path):
    path = filled(tmp_path / "ledger")
    path.write_bytes(path.read_bytes()[:-1])
    with Ledger(path) as ledger:
        assert [line["round"] for line in ledger.lines] == [1, 2, 3]
        release(ledger, 4)
    with Ledger(path) as ledger:
        assert [line["round"] for line in ledger.lines] == [1, 2, 3, 4]


def test_a_line_that_does_not_fit_on_the_disk_leaves_nothing_behind(tmp_path):
    """A full disk, made by a limit on the size of files: others who share the ledger go on, and so does this one."""
    path = filled(tmp_path / "ledger")
    size = path.stat().st_size
    with Ledger(path) as first, Ledger(path) as second:
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limit[1]))
            with pytest.raises(OSError) as caught:  # noqa: PT011
                release(first, 4)
            assert caught.value.errno == errno.EFBIG
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, handler)
        assert path.stat().st_size == size
        release(second, 4)
        release(first, 5)
        assert [line["round"] for line in first.lines] == [1, 2, 3, 4, 5]


def test_what_was_spent_is_the_composition_of_all_lines(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        assert spent(ledger.lines, "subject/public") == Nothing()
        for number in (1, 2, 3):
            release(ledger, number)
        assert spent(ledger.lines, "subject/public") == Repeated(SAMPLED, 3)
        release(ledger, 4, Gaussian(5.0))
        assert spent(ledger.lines, "subject/public") == Composed((Repeated(SAMPLED, 3), Gaussian(5.0)))


def test_of_a_joint_mechanism_only_the_last_line_counts_in_each_run(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        for run in ("a", "b"):
            for number, multiplier in ((1, 4.0), (2, 3.0)):
                release(ledger, number, Gaussian(multiplier), run=run, joint=True)
        assert spent(ledger.lines, "subject/public") == Composed((Gaussian(3.0), Gaussian(3.0)))


def test_a_view_that_a_line_says_nothing_about_is_unprotected(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        release(ledger, 1)
        assert isinstance(spent(ledger.lines, "subject/server"), Unprotected)


WRITER = """
import sys
from pathlib import Path
from tacit.privacy.accounting.events import Gaussian
from tacit.privacy.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
for number in range(1, 41):
    events = {"subject/public": Gaussian(2.0)}
    ledger.append(run=sys.argv[2], party="server", round=number, mechanism="sum", step=number, events=events)
"""


def test_runs_that_share_a_file_lose_no_line(tmp_path):
    """Three processes append at the same time; the chain stays whole and every line is there."""
    path = tmp_path / "shared.budget"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    lines = Ledger(path).lines
    for name in "abc":
        assert [line["round"] for line in lines if line["run"] == name] == list(range(1, 41))


def test_people_who_are_in_no_other_release_of_a_run_bear_the_larger_part_only(tmp_path):
    place, training, metrics = "subject/public/zero-out", Gaussian(4.0), Gaussian(2.0)

    def line(ledger, run, event, people=None):
        ledger.append(run=run, party="server", round=1, mechanism="m", step=1, events={place: event}, people=people)

    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        for _ in range(3):
            line(ledger, "a", training)
        line(ledger, "a", metrics, "held-out")
        one = Largest((Repeated(training, 3), metrics))
        assert spent(ledger.lines, place) == one
        line(ledger, "b", training)  # over runs everything adds up: who was held out may be trained on
        assert spent(ledger.lines, place) == Composed((training, one))
        line(ledger, "b", metrics, "held-out")
        both = Composed((one, Largest((training, metrics))))
        assert spent(ledger.lines, place) == both
    with Ledger(tmp_path / "ledger.jsonl") as ledger:  # the chain holds what it is about
        assert [line.get("people") for line in ledger.lines] == [None] * 3 + ["held-out", None, "held-out"]


@pytest.mark.parametrize("place", ["subject/public/replace", "record/public/replace", "silo/public/zero-out"])
def test_training_and_metrics_add_up_where_both_can_change(tmp_path, place):
    """A subject that is trained on may be replaced by one that is held out; a silo has subjects of both kinds."""
    training, metrics = Gaussian(4.0), Gaussian(2.0)
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        released = (("sum", training, "batch 1"), ("sum", training, "batch 2"), ("metrics", metrics, "held-out"))
        for mechanism, event, people in released:
            ledger.append(
                run="a", party="s", round=1, mechanism=mechanism, step=1, events={place: event}, people=people
            )
        found = spent(ledger.lines, place)
    rounds = Repeated(training, 2) if place.startswith("silo") else Largest((training,))
    assert found == Composed((rounds, metrics if place.startswith("silo") else Largest((metrics,))))


def test_a_ledger_is_never_readable_by_others_not_even_for_a_moment(tmp_path, monkeypatch):
    """Whatever the umask, and without a change of mode after it was made."""
    monkeypatch.setattr(os, "chmod", lambda *_, **__: pytest.fail("the mode was changed afterwards"))
    before = os.umask(0)
    try:
        with Ledger(tmp_path / "ledger.jsonl"):
            assert stat.S_IMODE((tmp_path / "ledger.jsonl").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_symbolic_link_or_a_device_is_no_ledger(tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("kept")
    (tmp_path / "link").symlink_to(other)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "pipe"):
        with pytest.raises(OSError):  # noqa: PT011
            Ledger(tmp_path / name)
    assert other.read_text() == "kept"
    assert not (tmp_path / "nothing").exists()


def test_an_id_is_a_line_of_the_chain_and_no_release(tmp_path):
    with Ledger(tmp_path / "l") as old:
        release(old, 1)
        head = old.head
        mark = old.identify()
        assert (old.identify(), old.head, len(old.lines)) == (mark, head, 1)
        release(old, 2)
    with Ledger(tmp_path / "l") as again:
        assert (again.id, len(again.lines)) == (mark, 2)
    with Ledger(tmp_path / "new") as other:
        assert other.id is None
        assert other.identify() != mark
    text = (tmp_path / "l").read_text()
    (tmp_path / "l").write_text(text.replace(mark, "0" * 16))
    with refuses("altered", kind=LedgerError):
        Ledger(tmp_path / "l")
    lines = text.splitlines(keepends=True)
    (tmp_path / "l").write_text(lines[0] + lines[2])
    with refuses("altered", kind=LedgerError):
        Ledger(tmp_path / "l")
