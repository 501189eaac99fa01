"""Where it runs: a plan in, a run folder out."""

from tacit.engine.folder import Run, read_metrics
from tacit.engine.run import Progress, Silence, load_federation, run

__all__ = ["Progress", "Run", "Silence", "load_federation", "read_metrics", "run"]
