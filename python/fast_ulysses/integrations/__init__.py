"""Adapters for frameworks. Each is imported by name and needs its framework; none is imported by ``fast_ulysses``."""
