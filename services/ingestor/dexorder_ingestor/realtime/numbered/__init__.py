"""Knowledge of the trades of a market that numbers them: values, open gaps, quiet time, searches. Pure."""
