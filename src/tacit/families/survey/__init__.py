"""Surveys: one question about one column of a table, answered with noise and written to a ledger first.

questions   the questions with their noise, and the proofs
ask         a question to a table: checks, ledger, answers, guarantees
picture     the answers as SVG
command     ``tacit survey``
"""
