"""counterlens: the debugger for image classifiers."""

__version__ = "0.1.0"
