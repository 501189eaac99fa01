"""``python -m tacit``: the same as the command ``tacit``."""

from tacit.ui.main import main

main()
