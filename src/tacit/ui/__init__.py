"""The command line: one module per group of commands, console output, progress bars.

Modules import what is slow to import (JAX, pandas, the accountant) inside functions, so that ``tacit --help`` is quick.
"""
