"""python -m counterlens."""

from counterlens.cli import main

main()
