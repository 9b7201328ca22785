"""What a new user does: install the wheel and follow the tutorial."""
