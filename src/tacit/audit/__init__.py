"""Is it true? Attacks and empirical lower bounds (in a later version)."""
