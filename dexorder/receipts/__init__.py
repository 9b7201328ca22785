"""Receipts: which rows a program has used, and why each hole is a hole."""
