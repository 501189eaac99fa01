"""Theorems: from public numbers to the event that describes a release. The docstrings are the proofs."""
