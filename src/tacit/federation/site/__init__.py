"""One organisation of a federation: its table, policy, ledgers and process."""
