"""Output of the command: text, JSON, progress; and refusal of misspelt tickers."""
