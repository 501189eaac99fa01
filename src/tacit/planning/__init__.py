"""From an experiment file to a plan, before any record is read.

settings    values of a TOML file and of ``--set``
experiment  the sections of an experiment file, validated
plan        experiment, method and exchange together
claims      what is guaranteed to whom, and the noise that a target needs
preview     what ``tacit plan`` shows
sweep       the same plan for other numbers
"""
