"""Tacit side by side with its peers: one file per question."""
