"""Rules of delivery: which channel an event takes next, and when."""
