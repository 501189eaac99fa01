"""Whether a plan can give a useful model: the noise of the whole training next to what people can add to it.

At a given epsilon the noise multiplier grows with the root of the number of rounds, so that the noise of the whole
training does not depend on it. What counts is

    noise over signal = multiplier sqrt(parameters) / (sqrt(rounds) people share)

where ``share`` is the weight of a subject with records in one silo. The two limits come from generated problems
(research/verdict.py): below the first one every model kept nearly all of what training without privacy gains over
guessing, above the second one none was of use. Between them it depends on the data, which a plan does not see.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from tacit.methods.clips import SubjectClip

if TYPE_CHECKING:
    from tacit.planning.plan import Plan

GOOD, HOPELESS = 0.05, 1.0


@dataclass(frozen=True)
class Verdict:
    """What to expect of a plan.

    light       good: the noise is small; uncertain: it depends on the data; hopeless: the model will be noise
    ratio       noise over signal, see the module
    people      declared number of subjects
    needed      about this many people would be needed for a good model with the same settings
    share       the weight of a subject with records in one silo; where subjects share slots, on average
    noise       standard deviation of the noise on each number of a sum, in clips
    factor      by how much ``max_silos_per_subject = 2`` would raise the signal; None where it would not
    """

    light: Literal["good", "uncertain", "hopeless"]
    ratio: float
    people: int
    needed: int
    parameters: int
    share: float
    noise: float
    factor: float | None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "words": self.words}

    @property
    def words(self) -> str:
        lights = {
            "good": "Good: the noise is small next to what people add.",
            "uncertain": "Uncertain: whether the model is useful depends on the data.",
            "hopeless": "Hopeless: the model would be noise.",
        }
        signal = (
            f"A subject with records in one silo adds at most {self.share:.3g} clips to a sum, and the noise on each of"
            f" {self.parameters:,} numbers is {self.noise:.3g} clips."
        )
        need = f"About {self.needed:,} people are needed for this model at this epsilon; {self.people:,} are declared."
        return " ".join([lights[self.light], signal, need, *([] if self.light == "good" else [self.change])])

    @property
    def change(self) -> str:
        """The cheapest change that helps."""
        if self.factor is not None:
            return (
                f"Declare privacy.max_silos_per_subject = 2, if that is true: signal times {self.factor:.3g}; or use"
                ' the weighted exchange with method.weights = "records", which needs no such promise.'
            )
        fewer = int(self.parameters * (GOOD / self.ratio) ** 2)
        smaller = f"a model of at most {fewer:,} numbers, " if fewer >= 2 else ""
        return f"What helps: {smaller}an epsilon {self.ratio / GOOD:.2g} times as large, or more people."


def verdict(plan: Plan) -> Verdict | None:
    """What to expect of a plan; None where the unit of work is not a subject, or sizes are not publicly known."""
    method, facts, parameters = plan.method, plan.promise.facts, plan.parameters
    if method.clip is None or method.clip.of != "subject" or method.noise is None or method.noise.in_a_round == 0:
        return None
    if parameters is None or method.contributions is None or facts.subjects is None:
        return None
    share = cast(SubjectClip, method.clip).share
    if plan.exchange.index == "slots":  # people who share a slot share its weight
        slots = plan.exchange.slot_count(facts.subjects)
        share *= slots / facts.subjects * -math.expm1(-facts.subjects / slots)
    noise = method.noise.in_a_round / method.bound
    ratio = noise * math.sqrt(parameters) / (math.sqrt(facts.rounds) * method.contributions.number * share)
    light: Literal["good", "uncertain", "hopeless"] = "uncertain"
    if ratio <= GOOD:
        light = "good"
    elif ratio > HOPELESS:
        light = "hopeless"
    is_capped = getattr(plan.options, "weights", None) == "capped"
    factor = 0.5 / share if is_capped and share < 0.5 else None
    needed = _rounded(facts.subjects * ratio / GOOD)
    return Verdict(light, ratio, facts.subjects, needed, parameters, share, noise, factor)


def _rounded(people: float) -> int:
    """Two digits, rounded up."""
    size = 10 ** max(0, math.floor(math.log10(max(people, 1))) - 1)
    return math.ceil(people / size) * size
