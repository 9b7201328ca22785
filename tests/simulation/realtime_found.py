"""Runs of the realtime chain that were broken once; the gate repeats the recent ones, the night all.

The code has changed since, so a run no longer meets the fault that it has found at the same moment. Each of these
faults has its unit test.
"""

from __future__ import annotations

from tests.simulation.realtime_profiles import (
    CALLS,
    CORRECTED_KILLED,
    LACKING,
    PRODUCT,
    PROFILES,
    RARE,
    RESTARTED_BEHIND,
    RESTARTED_KILLED,
    RESTARTED_OFTEN,
    UNNUMBERED_CORRECTED,
    UNNUMBERED_LACKING,
    UNNUMBERED_PRODUCTS,
)

_PARTS_THAT_DIE = PROFILES["no numbers, parts that die"]
OLDER = (
    *((5001, _PARTS_THAT_DIE), (6004, _PARTS_THAT_DIE), (5005, RARE), (6003, RARE), (5005, PRODUCT), (6009, PRODUCT)),
    *((158, PRODUCT), (1, RESTARTED_KILLED), (5, RESTARTED_KILLED), (21, RESTARTED_KILLED), (137, RESTARTED_KILLED)),
    *((23, RESTARTED_BEHIND), (230, RARE), (721125, RESTARTED_KILLED), (731382, RARE)),
    *((761255, RESTARTED_BEHIND), (771211, RESTARTED_BEHIND), (771939, RESTARTED_BEHIND), (843008, RESTARTED_BEHIND)),
    *((811017, RESTARTED_KILLED), (813005, RESTARTED_OFTEN), (813058, RESTARTED_OFTEN)),
    *((853041, RESTARTED_KILLED), (853051, RESTARTED_KILLED), (863278, RESTARTED_OFTEN), (902136, PRODUCT)),
    *((1000342, RESTARTED_OFTEN), (1014866, RESTARTED_BEHIND)),
)
"""Jobs that did not say why they wait, a socket that lives on after a silence, a market whose first trades REST lacked,
dispatches that resumed after numbers had begun again, numbers that did so twice, a gap that two dispatches had found, a
market that has never traded, of which the checks asked too much, a trade that fitted into a gap before the new numbers
and followed them too, and a trade of time that REST alone had called quiet, which the next dispatch took for a recorded
one; then numbers that begin again twice or three times, while the socket is dead, REST is behind or an ingestor is
killed: trades of two sequences taken for one, the end of one counted twice, a new number forgotten by a search that had
begun before it, and new numbers that the first answer of a dispatch shows after the last recorded trade, or that follow
it on the socket by accident."""
RECENT = (
    *((1110751, CORRECTED_KILLED), (1121611, CORRECTED_KILLED), (1010674, UNNUMBERED_CORRECTED)),
    *((1000390, UNNUMBERED_PRODUCTS), (1210549, LACKING), (1600995, RESTARTED_OFTEN), (1802148, RESTARTED_BEHIND)),
    *((1903030, UNNUMBERED_PRODUCTS), (2300639, PRODUCT), (59, CALLS), (3400025, PROFILES["numbers left out"])),
    *((3100073, UNNUMBERED_LACKING), (3800177, UNNUMBERED_PRODUCTS), (4103175, UNNUMBERED_CORRECTED)),
)
"""A candle that was closed just before its ingestor was killed, trades of that ingestor whose values nobody compared
because the next one was killed too, trades that REST lacked for minutes, dispatches too short to say why they wait, a
trade that closed its gap twice, numbers that began again within a second, a trade that was on its way while the socket
showed signs of life, a status that arrived after a newer one, trades that were neither in the table nor named a minute
after the last fault: behind numbers left out, and the last one of a market; and a candle of corrected trades that was
not built again, since the market had no trade after them."""
