"""Profiles of the realtime chain: exchanges on bad days. Each describes what exchanges do, not what the suite does."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.exchange.faults import FaultKind as K
from tests.simulation.exchange.faults import FaultProfile
from tests.simulation.realtime import RealtimeProfile, RealtimeStory
from tests.simulation.run import Broken, Run

_BUSY = (0.2, 0.8)

HONEST = RealtimeProfile("an honest exchange")

_QUIET_DAY = RealtimeProfile("", seconds=840.0, quiet_seconds=400.0, per_second=(0.05, 0.2))

UNNUMBERED = RealtimeProfile(
    "no numbers, and a REST that is behind or cached",
    FaultProfile((K.BEHIND, K.CACHED, K.SILENT), count=3, seconds=(10.0, 120.0)),
    numbered=False,
)
UNNUMBERED_PRODUCTS = RealtimeProfile(
    "no numbers: a deaf or cut socket, a REST that is behind or cached, other values, restarts",
    FaultProfile(
        (K.BEHIND, K.CACHED, K.REFUSED, K.DOUBLED, K.SHUFFLED),
        outages=3,
        outage_kinds=(K.SILENT, K.CUT),
        seconds=(5.0, 150.0),
        rest_fails=0.9,
        rest_kinds=(K.BEHIND, K.CACHED),
        corrected=0.5,
    ),
    per_second=_BUSY,
    seconds=900.0,
    quiet_seconds=420.0,
    numbered=False,
    kills=3,
)
UNNUMBERED_LACKING = RealtimeProfile(
    "no numbers: REST lacks what the socket has sent",
    FaultProfile((K.LACKS, K.SHUFFLED, K.BEHIND), count=4, seconds=(5.0, 240.0)),
    numbered=False,
)

_QUIET = (
    replace(_QUIET_DAY, name="an honest exchange"),
    replace(
        _QUIET_DAY,
        name="a restless socket",
        faults=FaultProfile((K.SILENT, K.CUT, K.DOUBLED, K.SHUFFLED), count=4, seconds=(0.2, 60.0)),
        kills=1,
    ),
    replace(
        _QUIET_DAY,
        name="a REST that refuses",
        faults=FaultProfile((K.REFUSED, K.EMPTY, K.CUT), count=4, seconds=(0.5, 120.0)),
        relay_kills=1,
    ),
    replace(
        _QUIET_DAY,
        name="numbers left out",
        faults=FaultProfile((K.JUMPED, K.CUT), count=3, seconds=(0.2, 20.0)),
    ),
    replace(_QUIET_DAY, name="parts that die", kills=2, relay_kills=2, freezes=2, lost_calls=0.1),
    replace(_QUIET_DAY, name="no numbers, parts that die", numbered=False, kills=2, relay_kills=1, lost_calls=0.05),
    UNNUMBERED,
    UNNUMBERED_PRODUCTS,
    UNNUMBERED_LACKING,
)

RARE = RealtimeProfile(
    "a trade in some minutes, while socket and REST fail",
    FaultProfile(
        (K.BEHIND, K.CACHED, K.DOUBLED),
        outages=2,
        seconds=(5.0, 240.0),
        rest_fails=0.7,
        rest_kinds=(K.BEHIND, K.LACKS, K.CACHED),
    ),
    per_second=(0.001, 0.01),
    seconds=2_400.0,
    quiet_seconds=1_200.0,
    periods=((60,),),
    kills=1,
)
DEAF_AND_BEHIND = RealtimeProfile(
    "a deaf socket, and a replica that is behind",
    FaultProfile(outages=3, outage_kinds=(K.SILENT,), seconds=(30.0, 150.0), rest_fails=0.9),
    kills=3,
    periods=((60,),),
    per_second=_BUSY,
    seconds=900.0,
    quiet_seconds=420.0,
)
LACKING = RealtimeProfile(
    "a replica that has lost its feed with the socket",
    FaultProfile(
        outages=2,
        outage_kinds=(K.CUT,),
        seconds=(2.0, 20.0),
        rest_fails=0.9,
        rest_kinds=(K.LACKS,),
        rest_seconds=(30.0, 240.0),
    ),
    per_second=_BUSY,
    seconds=900.0,
    quiet_seconds=420.0,
    periods=((), (60,)),
)
LATE = RealtimeProfile(
    "trades that are published late",
    FaultProfile((K.LATE,), seconds=(1.0, 20.0), delay_seconds=(60.0, 180.0)),
)
BEHIND = RealtimeProfile(
    "a REST that is behind",
    FaultProfile((K.BEHIND,), seconds=(60.0, 400.0)),
)
BEHIND_FOR_LONG = RealtimeProfile(
    "a REST that is behind when candles are compared",
    FaultProfile((K.BEHIND,), count=3, seconds=(60.0, 400.0), delay_seconds=(45.0, 180.0)),
    per_second=_BUSY,
    periods=((60,),),
)
CORRECTED = RealtimeProfile(
    "trades that are corrected before a cut, and kills",
    FaultProfile(outages=3, outage_kinds=(K.CUT,), seconds=(0.5, 20.0), corrected=0.9),
    kills=3,
    per_second=_BUSY,
    seconds=900.0,
    quiet_seconds=420.0,
)
CORRECTED_ALONE = RealtimeProfile(
    "trades that are corrected, and nothing else happens: in a busy market no other query shows it",
    FaultProfile((K.CORRECTED,), count=3, seconds=(0.5, 20.0)),
    per_second=(0.1, 4.0),
    periods=((60,), ()),
    seconds=740.0,
    quiet_seconds=320.0,
)
CORRECTED_KILLED = replace(
    CORRECTED_ALONE,
    name="many trades that are corrected, and kills before REST was asked about them",
    faults=FaultProfile((K.CORRECTED,), count=3, seconds=(5.0, 60.0)),
    per_second=(2.0, 4.0),
    kills=3,
)
REVISED = RealtimeProfile(
    "trades that are corrected after REST has shown their first values: candles show it",
    FaultProfile((K.REVISED,), count=3, seconds=(0.5, 20.0), delay_seconds=(90.0, 400.0)),
    per_second=(0.1, 1.0),
    periods=((60,),),
    seconds=1_800.0,
    quiet_seconds=1_300.0,
)
UNNUMBERED_CORRECTED = replace(
    CORRECTED_ALONE,
    name="no numbers: trades that are corrected, and some of them taken from the socket, as REST lacks them",
    faults=FaultProfile(
        outages=3, outage_kinds=(K.CORRECTED,), seconds=(15.0, 60.0), rest_fails=0.9, rest_kinds=(K.LACKS,)
    ),
    numbered=False,
)
RESTARTED = RealtimeProfile(
    "numbers that begin again",
    FaultProfile((K.RESTARTED, K.CUT), count=3, seconds=(0.5, 20.0)),
)
RESTARTED_KILLED = replace(RESTARTED, name="numbers that begin again, and kills", kills=3)
RESTARTED_BEHIND = replace(
    RESTARTED,
    name="numbers that begin again, a REST that is behind then, and kills",
    faults=FaultProfile(
        outages=2, outage_kinds=(K.RESTARTED,), seconds=(0.5, 20.0), rest_fails=0.9, rest_kinds=(K.BEHIND, K.CACHED)
    ),
    kills=2,
)
RESTARTED_OFTEN = replace(
    RESTARTED_BEHIND,
    name="numbers that begin again three times, a REST that is behind then, and kills",
    faults=replace(RESTARTED_BEHIND.faults, outages=3),
)
DELISTED = RealtimeProfile(
    "a market that is delisted, and kills",
    FaultProfile(outages=1, outage_kinds=(K.DELISTED,), seconds=(60.0, 300.0)),
    seconds=900.0,
    quiet_seconds=300.0,
    kills=2,
)
UNNUMBERED_DELISTED = replace(DELISTED, name="no numbers: a market that is delisted, and kills", numbered=False)
PRODUCT = RealtimeProfile(
    "all faults, each with each, and a kill in the midst of them",
    FaultProfile(
        (K.SILENT, K.CUT, K.DOUBLED, K.SHUFFLED, K.BEHIND, K.CACHED, K.LACKS, K.REFUSED, K.EMPTY, K.LATE, K.JUMPED),
        count=5,
        seconds=(5.0, 600.0),
        outages=1,
        rest_fails=0.9,
        rest_kinds=(K.BEHIND, K.LACKS, K.CACHED),
        replicas=2,
    ),
    per_second=(0.1, 0.5),
    seconds=1_800.0,
    quiet_seconds=500.0,
    kills=1,
    relay_kills=1,
)
CALLS = replace(
    PRODUCT,
    name="all faults, parts that die and stand still, and calls that are lost or arrive again later",
    kills=2,
    relay_kills=2,
    relay_away=240.0,
    freezes=1,
    lost_calls=0.1,
    repeated_calls=0.1,
)
UNNUMBERED_CALLS = replace(CALLS, name=f"no numbers: {CALLS.name}", faults=UNNUMBERED_PRODUCTS.faults, numbered=False)
MENDED = (
    RARE,
    DEAF_AND_BEHIND,
    LACKING,
    LATE,
    BEHIND,
    BEHIND_FOR_LONG,
    CORRECTED,
    CORRECTED_ALONE,
    CORRECTED_KILLED,
    REVISED,
    UNNUMBERED_CORRECTED,
    RESTARTED,
    RESTARTED_KILLED,
    RESTARTED_BEHIND,
    RESTARTED_OFTEN,
    DELISTED,
    UNNUMBERED_DELISTED,
    PRODUCT,
    CALLS,
    UNNUMBERED_CALLS,
)
"""Profiles whose faults last and go together."""
HOLD = (*_QUIET, *MENDED)
"""Profiles under which every promise holds."""
PROFILES = {each.name: each for each in HOLD}


def drawn(seed: int) -> RealtimeStory:
    """Return the run of a seed: a profile that holds today, which the seed chooses."""
    return RealtimeStory(seed, Random(f"{seed} profile").choice(HOLD))


def simulate(seed: int) -> Run:
    """Run the profile of a seed; `Broken` if a promise does not hold."""
    story = drawn(seed)
    if found := story.play():
        broken = Broken(str(found[0]))
        broken.story = story.run.story
        raise broken
    return story.run
