"""Simulated exchanges: what they know, and the ways in which they answer late, falsely or not at all."""
