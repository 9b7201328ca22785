"""State on local disk: SQLite, process lock, watched file."""
