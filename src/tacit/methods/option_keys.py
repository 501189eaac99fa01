"""The keys of ``[method]``: the type of each, its range and its meaning. A name means the same in every method.

Options classes declare a key with a type from here. Keys that belong to one method are described in its own class.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tacit.planning.settings import AtLeastOne, Count, Natural, NotNegative, Positive, Rate
from tacit.privacy.proofs.weight_tables import RecordWeights

__all__ = ["AtLeastOne", "Count", "Natural", "NotNegative", "Positive", "Rate"]  # and the keys below

# A clip stays in this range, an adaptive one as well: far from where float32 loses squares and quotients.
CLIP_RANGE = (1e-9, 1e9)
ClipNorm = Annotated[float, Field(strict=True, ge=CLIP_RANGE[0], le=CLIP_RANGE[1])]

# -- local training

BatchSize = Annotated[Count | None, Field(description="records per local batch; left out: all records in one batch")]
SiloBatch = Annotated[Count | Literal["all"], Field(description="records per local batch; all: one batch of all")]
SiloRate = Annotated[Rate, Field(description="public Poisson rate at which a silo enters a round")]
LocalEpochs = Annotated[Count, Field(description="shuffled passes over a silo's or a subject's records")]
BatchesPerRound = Annotated[Count | None, Field(description="instead of local_epochs: exactly this many batches")]
LearningRate = Annotated[Positive, Field(description="learning rate of local steps")]

# -- noise

Target = Annotated[Positive | None, Field(description="instead of the noise: the plan solves for the noise")]
ClipKey = Annotated[ClipNorm, Field(description="l2 bound on what is clipped (`tacit methods` says what that is)")]
ClipOrDirection = Annotated[
    ClipNorm | None,
    Field(description="l2 bound on what is clipped; left out: a subject's gradient is scaled to length 1"),
]
Multiplier = Annotated[
    NotNegative | None, Field(description="standard deviation of the noise on the sum, divided by clip")
]
SampleRates = Annotated[
    Rate | tuple[Rate, ...],
    Field(description="public rate at which a record enters a batch; one number, or one per silo"),
]
SubjectRate = Annotated[
    Rate, Field(description="public Poisson rate at which a subject enters a round, by one coin for all silos")
]

# -- subjects

Weights = Literal["uniform", "capped", RecordWeights]
Divisor = Annotated[
    Literal["paper", "people"],
    Field(
        description="what the server divides the sum by. paper: people times silos, so that a useful "
        "train.server_learning_rate grows with the number of silos; people: it means the same for every number of silos"
    ),
]
WeightsKey = Annotated[
    Weights,
    Field(
        description="uniform: 1 / silos; capped: min(n_su, weight_cap) / (weight_cap m) for at most m silos of a "
        "subject, 1 / m without a weight_cap. Weights that need counts of all silos: records: n_su / N_u; "
        "records-phantom: n_su / (1 + N_u); "
        "records-sqrt: n_su / sqrt(N_u N_max); records-capped: n_su / max(N_u, weight_cap)"
    ),
]
WeightCap = Annotated[
    Count | None,
    Field(
        description="public; capped: this many records of a subject in a silo have the largest weight; "
        "records-capped: this many records in all silos"
    ),
]
DiscloseCounts = Annotated[
    bool, Field(description="record weights: accept that a view learns the counts; it then has no guarantee")
]
LocalEpsilon = Annotated[
    Positive | None, Field(description="what one subject's reports of one epoch cost by themselves")
]
ValueRange = Annotated[Positive, Field(description="C: every number of an update is clipped to [-C, C]")]
BatchSubjects = Annotated[
    Count | None, Field(description="at least this many subjects take part in a round; left out: all")
]
Epochs = Annotated[Count | None, Field(description="instead of train.rounds: how often every subject takes part")]
IndexRate = Annotated[Rate, Field(description="beta: k = int(beta d) numbers are reported")]
Padding = Annotated[
    Count | None, Field(description="messages per dimension; left out: as many as there are subjects in a round")
]
Levels = Annotated[Count, Field(description="response: the number of steps between levels")]

# -- nodes

Nodes = Annotated[
    Literal["silos", "subjects"],
    Field(description="silos; or subjects with all their records, in as many places as there are declared subjects"),
]
