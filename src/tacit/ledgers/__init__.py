"""Ledgers as files of an organisation: encrypted backups, and the true cost of runs of earlier versions."""
