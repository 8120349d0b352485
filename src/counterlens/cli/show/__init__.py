"""What a command prints on the terminal."""
