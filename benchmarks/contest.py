"""Run the contestants of a race in turns and keep everything they print.

Every contestant is a process of its own, with its own interpreter where its environment differs. First each one is
tuned: it runs under each of its settings and keeps the one with the most rounds per second. Then all run ``repeats``
times, one after the other, the starting one changing from repeat to repeat. A contestant that fails stays in the
results, with the reason.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.work import Race

ROOT = Path(__file__).resolve().parent.parent
Settings = Mapping[str, object]


@dataclass(frozen=True)
class Contestant:
    """A module of ``benchmarks.contestants``, the settings worth trying, whether it needs the peers' environment."""

    name: str
    module: str
    settings: tuple[Settings, ...] = ({},)
    is_peer: bool = True


@dataclass(frozen=True)
class Attempt:
    """One process of one contestant: what it printed, or why it failed; ``process_seconds`` is its whole life."""

    contestant: str
    settings: Settings
    process_seconds: float
    record: dict[str, Any] | None = None
    failure: str | None = None


@dataclass
class Results:
    """All that a race produced. ``repeats[r][name]`` is that contestant's attempt in repeat r."""

    race: Race
    machine: dict[str, object]
    tuning: list[Attempt] = field(default_factory=list)
    repeats: list[dict[str, Attempt]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Stage:
    """Where a race runs: data, interpreters, patience."""

    data: Path
    python: str = sys.executable
    peers_python: str = sys.executable
    timeout: float = 600.0

    def attempt(self, contestant: Contestant, settings: Settings) -> Attempt:
        """One process, from start to end."""
        python = self.peers_python if contestant.is_peer else self.python
        command = [python, "-m", f"benchmarks.contestants.{contestant.module}", "--data", str(self.data.resolve())]
        for name, value in settings.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        start = time.perf_counter()
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=self.timeout, check=False, env=_environment()
            )
        except subprocess.TimeoutExpired:
            return Attempt(contestant.name, settings, self.timeout, failure=f"not done after {self.timeout:.0f} s")
        seconds = time.perf_counter() - start
        if done.returncode:
            return Attempt(contestant.name, settings, seconds, failure=_last_line(done.stderr))
        return Attempt(contestant.name, settings, seconds, record=json.loads(_last_line(done.stdout)))


def compete(race: Race, contestants: tuple[Contestant, ...], stage: Stage, repeats: int, tuning_runs: int) -> Results:
    """Tune, then race in turns."""
    results = Results(race, machine())
    chosen: dict[str, Settings] = {}
    for contestant in contestants:
        tried = _tune(race, contestant, stage, tuning_runs)
        results.tuning += tried
        chosen[contestant.name] = _best(race, contestant, tried)
    for repeat in range(repeats):
        turn = repeat % len(contestants)
        attempts = {}
        for contestant in contestants[turn:] + contestants[:turn]:
            attempts[contestant.name] = _announced(race, stage.attempt(contestant, chosen[contestant.name]))
        results.repeats.append(attempts)
    return results


def rounds_per_second(race: Race, attempt: Attempt) -> float:
    """Steady speed: one over the median round after the warm-up."""
    if attempt.record is None:
        return float("nan")
    return 1.0 / median(attempt.record["round_seconds"][race.warm_up_rounds :])


def machine() -> dict[str, object]:
    """What the numbers depend on besides the code."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d"),
    }


def _tune(race: Race, contestant: Contestant, stage: Stage, runs: int) -> list[Attempt]:
    if len(contestant.settings) < 2:
        return []
    return [
        _announced(race, stage.attempt(contestant, settings)) for _ in range(runs) for settings in contestant.settings
    ]


def _best(race: Race, contestant: Contestant, tried: list[Attempt]) -> Settings:
    """The settings of the fastest attempt; the first ones where none succeeded."""
    succeeded = [attempt for attempt in tried if attempt.record is not None]
    if not succeeded:
        return contestant.settings[0]
    return max(succeeded, key=lambda attempt: rounds_per_second(race, attempt)).settings


def _announced(race: Race, attempt: Attempt) -> Attempt:
    """Say on the terminal how an attempt went."""
    settings = " ".join(f"{name}={value}" for name, value in attempt.settings.items())
    outcome = attempt.failure or f"{rounds_per_second(race, attempt):.2f} rounds/s"
    print(f"{attempt.contestant:8} {settings:40} {outcome}", file=sys.stderr, flush=True)
    return attempt


def _environment() -> dict[str, str]:
    """The contestants' environment: ours, with the project's root and sources importable."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"
