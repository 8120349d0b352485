"""Documents of finished runs for other people and other programs: evidence, and exports."""
