"""What is public about the sums of a run: what an exchange must know to be sized before any record is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tacit.privacy import Noise
from tacit.privacy.mechanisms.noise_mechanisms import Randomizer
from tacit.privacy.randomness import shares


@dataclass(frozen=True)
class ReportFacts:
    """The single reports that people make, where they make such.

    dimensions  how many numbers a contribution has
    padded      so many reports about each of them are added up
    crowd       at most so many people report in one round
    randomizer  by which reports are made
    listed      how many numbers one person reports about; None where that is random
    """

    dimensions: int
    padded: int
    crowd: int
    randomizer: Randomizer
    listed: int | None = None


@dataclass(frozen=True)
class SumFacts:
    """The sum over silos that a method asks for.

    silos    how many silos there are
    people   how many people, or slots for people; 1 where contributions are not those of people
    bound    the largest entry of anybody's contribution
    noise    the noise in the sum; None where there is none
    records  at most so many records of one person in one silo, where that is declared
    rate     the public rate at which a person enters a round
    reports  the reports that are added up, where people make such
    complete whether no silo may be missing: the guarantee counts on the noise of all of them
    """

    silos: int
    people: int
    bound: float
    noise: Noise | None = None
    records: int | None = None
    rate: float = 1.0
    reports: ReportFacts | None = None
    complete: bool = False

    @property
    def largest(self) -> float:
        """The largest entry that a sum can have before noise."""
        return self.people * self.bound


class Members(NamedTuple):
    """The people of one silo: the slot and the number of records of each, ``[people of the silo]``."""

    slots: np.ndarray
    counts: np.ndarray


class PersonVectors(NamedTuple):
    """What people of one silo add: their ``places [n]`` among its :class:`Members`, and ``vectors [n, numbers]`` in
    steps of the grid, clipped and not weighted."""

    places: np.ndarray
    vectors: np.ndarray


def people_of(k: int, people: int, silos: int) -> np.ndarray:
    """The places of silo ``k``, which draws their noise: k, k + silos, k + 2 silos, … A public choice, so that a place
    without records reports as the others do."""
    return np.arange(k, people, silos)


def places_of(keys: np.ndarray, people: int) -> np.ndarray:
    """The places, of ``people`` that are declared, of people with these keys: by their keys alone, so that nobody's
    presence moves others. People with one place are one encoder, whose report is protected whatever it is about."""
    return shares(keys, people)
