"""Stores: procedures run on a real database. `open_store` picks one by its URL."""
