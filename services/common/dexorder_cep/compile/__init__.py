"""Syntax tree to a plan: names, types, generated functions, automata. Pure."""
