"""Ways to a user outside of sessions: each takes a `Message` and says what came of it, without naming whom or where."""
