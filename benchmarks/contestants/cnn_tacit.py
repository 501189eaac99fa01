"""Race 2, Tacit."""

from __future__ import annotations

from benchmarks.contestants.tacit_side import compete
from benchmarks.record import Record

if __name__ == "__main__":
    compete(Record("tacit"), "CROSS_SILO", "cnn")
