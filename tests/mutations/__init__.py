"""Mutations of pure modules: small changes of the syntax tree, which the nearest unit tests must notice."""
