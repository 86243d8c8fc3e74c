"""The ``fast-ulysses`` command."""
