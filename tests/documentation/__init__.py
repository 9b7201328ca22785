"""Code blocks of the documentation, and how each of them is run."""
