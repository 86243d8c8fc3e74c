"""``python -m fast_ulysses``: the same as the command ``fast-ulysses``."""

from .cli.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
