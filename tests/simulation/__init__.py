"""The whole chain in one thread under one virtual clock, from one seed; docs/simulation.md describes it."""
