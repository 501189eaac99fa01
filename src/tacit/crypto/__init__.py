"""Primitives for the private exchanges (in a later version)."""
