"""SQLite database of the relay: tables, statements, and the thread that writes them."""
