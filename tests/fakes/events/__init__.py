"""Fakes of user events: providers on loopback that check requests as the real ones do, and a dispatcher in memory."""
