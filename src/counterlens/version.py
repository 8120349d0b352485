"""The version, for modules that must not load what the package offers."""

__version__ = "0.1.0"
