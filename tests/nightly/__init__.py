"""Long campaigns; each prints a Markdown table that is kept under bench/results."""
