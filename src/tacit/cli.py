"""The former place of the program, for commands that were installed before 0.2. Use :mod:`tacit.ui.main`."""

from tacit.ui.main import app, main

__all__ = ["app", "main"]

if __name__ == "__main__":
    main()
