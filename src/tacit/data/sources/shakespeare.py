"""Shakespeare's 37 plays: predict the next character of a speech.

One record is a window of 80 characters and the character after it; windows run over everything that one character of
one play says, every ``window_stride`` characters. One subject is a play's character. Silos are the plays (a subject
lives in one) or, with ``silos = { column = "act" }``, the five acts (a subject speaks in several): a window belongs to
the act of the character that it predicts. Prologues and inductions count to act 1, epilogues to act 5.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tacit.data.options import DataOptions, Labels
from tacit.data.sources import Folder, Given, Raw, Source, SourceFacts, refuse_table_settings
from tacit.errors import UserError, nearest

ORIGIN = "the public-domain Moby text of the plays (Jon Bosak's edition), one speech per row, as speeches.csv.gz"
FOLDER = Folder("shakespeare", ORIGIN)
WINDOW = 80

# The public alphabet: 80 characters of English print. What is outside it (one '$') is read as a space.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LABELS = Labels("multiclass", tuple(ALPHABET))
ACTS = tuple(f"act {k}" for k in range(1, 6))
PLAYS = 37
SPEAKERS = 1172  # with at least one window


def facts(options: DataOptions) -> SourceFacts:
    silos = len(ACTS) if options.silos.column == "act" else PLAYS
    return SourceFacts(
        labels=LABELS,
        silo_count=options.silos.count or silos,
        subject_count=options.subjects.count or SPEAKERS,
        origin=ORIGIN,
        feature_shape=(WINDOW,),
    )


def read(options: DataOptions, frame: Given, rng: np.random.Generator) -> Raw:
    refuse_table_settings(options, frame)
    if options.subjects.column not in (None, "speaker"):
        problem = f"shakespeare has no column '{options.subjects.column}'"
        raise UserError("unknown-name", "data.subjects.column", problem, "use 'speaker' or leave it out")
    speeches = pd.read_csv(FOLDER.file(options, "speeches.csv.gz"), keep_default_na=False)
    speeches = speeches.assign(act=_acts(speeches), speaker=pd.factorize(speeches["subject"])[0])
    speeches = speeches.sort_values("speaker", kind="stable")
    codes, speech = _joined(speeches["text"], speeches["speaker"].to_numpy())
    starts = _starts(speeches["speaker"].to_numpy()[speech], options.window_stride)
    windows = np.lib.stride_tricks.sliding_window_view(codes, WINDOW)
    target = speech[starts + WINDOW]
    silo, silo_names = _silos(speeches, target, options)
    return Raw(
        LABELS,
        codes[starts + WINDOW].astype(np.int32),
        lambda rows: windows[starts[rows]].astype(np.int32),
        None if options.subjects.assign else speeches["speaker"].to_numpy()[target].astype(np.int32),
        silo,
        silo_names,
    )


def encode_text(text: str) -> np.ndarray:
    """Positions in the alphabet ``[characters]`` uint8; foreign characters become spaces."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    table = np.full(128, ALPHABET.index(" "), np.uint8)
    table[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))
    return np.where(points < 128, table[np.minimum(points, 127)], table[0])


def _joined(texts: pd.Series, speaker: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All speeches as one array of codes ``[characters]``, and the number of the speech of each character.

    Speeches of one speaker are joined by a newline, which belongs to the speech that it ends.
    """
    last = np.append(speaker[1:] != speaker[:-1], True)
    whole = [text if end else text + "\n" for text, end in zip(texts, last, strict=True)]
    return encode_text("".join(whole)), np.repeat(np.arange(len(whole)), [len(text) for text in whole])


def _starts(speaker: np.ndarray, stride: int) -> np.ndarray:
    """Where windows start ``[windows]``: every ``stride`` characters of a speaker while a next character exists."""
    first = np.flatnonzero(np.append(True, speaker[1:] != speaker[:-1]))
    lengths = np.diff(np.append(first, len(speaker)))
    offset = np.arange(len(speaker)) - np.repeat(first, lengths)
    return np.flatnonzero((offset % stride == 0) & (offset + WINDOW < np.repeat(lengths, lengths)))


def _acts(speeches: pd.DataFrame) -> np.ndarray:
    """Acts 1 .. 5 ``[speeches]``; what stands outside an act goes to the first or the last, whichever is nearer."""
    act = speeches["act_no"].to_numpy()
    middle = speeches.groupby("play")["speech_no"].transform("max").to_numpy() / 2
    return np.where(act > 0, act, np.where(speeches["speech_no"].to_numpy() < middle, 1, len(ACTS)))


def _silos(
    speeches: pd.DataFrame, target: np.ndarray, options: DataOptions
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Silo numbers ``[windows]`` and names, by play or by act; None where silos are assigned."""
    if options.silos.assign:
        return None, ()
    column = options.silos.column or "play"
    if column == "act":
        return (speeches["act"].to_numpy() - 1)[target].astype(np.int32), ACTS
    if column != "play":
        problem = f"shakespeare has no column '{column}'"
        raise UserError("unknown-name", "data.silos.column", problem, nearest(column, ["play", "act"]))
    codes, plays = pd.factorize(speeches["play"], sort=True)
    return codes[target].astype(np.int32), tuple(plays)


SOURCE = Source("shakespeare", facts, read)
