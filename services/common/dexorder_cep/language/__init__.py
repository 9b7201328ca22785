"""Text of a trigger to a syntax tree. Pure."""
