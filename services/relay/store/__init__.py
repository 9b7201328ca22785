"""The relay's SQLite database: its tables, every change to them as a statement, and the thread that writes it."""
