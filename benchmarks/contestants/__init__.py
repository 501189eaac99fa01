"""The contestants of the races: each module is a program of its own that prints one JSON object (see ``record.py``)."""
