"""Requests for history: their state, the rules that change it, and the components that apply them."""
