"""Realtime jobs: trades from sockets, refilled by REST; candles built from them; ticker snapshots."""
