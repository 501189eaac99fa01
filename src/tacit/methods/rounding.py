"""Sums of clipped record gradients that are never formed one by one: their rounding is part of the sensitivity."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.errors import UserError
from tacit.kernels.clipped_sum import Rounding, rounding
from tacit.methods.clips import Clip, RecordClip, Shift
from tacit.methods.facts import Facts
from tacit.privacy import Relation, Unit

# Where the plan does not know how many parameters a model has, it counts on no more than this.
MOST_PARAMETERS = 1 << 16
# Rounding that would cost more than this part of the noise is refused.
MOST_ROUNDING = 0.05


@dataclass(frozen=True)
class RoundedBatches:
    """What rounding adds to the shift of a batch's sum (specification 9.6, ``kernels.clipped_sum.rounding``).

    sizes      each silo's expected number of records in a batch: public
    deviation  the standard deviation of the noise
    """

    clip: Clip
    facts: Facts
    sizes: tuple[float, ...]
    deviation: float

    @property
    def rounding(self) -> Rounding:
        """By how many clips a batch moves because it is rounded, at most. None: a batch that is clipped as a whole is
        rounded toward zero."""
        if not isinstance(self.clip, RecordClip):
            return Rounding(0.0, 0.0)
        numbers = self.facts.parameters or MOST_PARAMETERS
        repeated = (self.facts.max_records or 1) if self.clip.averaged else 1
        noise = self.deviation / self.clip.norm
        return max((rounding(size, numbers, noise, repeated) for size in self.sizes), default=Rounding(0.0, 0.0))

    def noise_over(self, shift: Shift) -> float:
        """Noise over shift, with the rounding of the batch."""
        more = self.rounding
        return self.clip.noise_over(Shift(shift.moved * (1 + more.entry) + more.batch, shift.counted))

    def noise_for(self, unit: Unit, relation: Relation) -> float:
        """:meth:`noise_over` for what one unit moves a batch by, which the clip must bound."""
        shift = self.clip.sensitivity(unit, relation, self.facts)
        assert shift is not None
        return self.noise_over(shift)

    @property
    def of_a_record(self) -> float:
        """:meth:`noise_over` for one record."""
        return self.noise_over(Shift(1.0, self.clip.counted))

    def check_size(self, parameters: int | None) -> None:
        """Refuse (UserError) rounding that is not covered."""
        if parameters is not None and parameters > (self.facts.parameters or MOST_PARAMETERS):
            problem = f"the model has {parameters:,} parameters, and the plan does not know it from public facts"
            raise UserError(
                "missing", "data.numeric", problem, f"declare the columns, or use at most {MOST_PARAMETERS:,}"
            )
        most = sum(self.rounding)
        if most > MOST_ROUNDING:
            problem = f"rounding moves a sum by {most:.3f} clips, more than {MOST_ROUNDING:g}"
            fix = "use less noise (larger batches need a smaller multiplier), or a smaller model"
            raise UserError("out-of-range", "method.noise_multiplier", problem, fix)
