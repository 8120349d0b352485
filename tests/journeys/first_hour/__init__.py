"""The first hour of a new user, step by step."""
