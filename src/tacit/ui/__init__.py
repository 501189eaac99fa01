"""The command line: one module per group of commands, and what they print.

Modules import what is slow to import (JAX, pandas, the accountant) inside functions, so that ``tacit --help`` is quick.
"""
