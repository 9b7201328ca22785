"""The simulated exchange: a real exchange's dialect over deterministic or recorded candles, with faults on demand."""
