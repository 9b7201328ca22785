"""Complex event processing: Flink SQL triggers over candles and trades. Pure. docs/cep.md describes the language."""

from dexorder.services.common.cep.backtest import backtest
from dexorder.services.common.cep.compiled import CompiledTrigger, compile_trigger
from dexorder.services.common.cep.engine import Engine
from dexorder.services.common.cep.engine_state import EngineState
from dexorder.services.common.cep.outcomes import Ended, Firing, Outcome, ResultColumn, Suspension
from dexorder.services.common.cep.parameters import periods_read
from dexorder.services.common.cep.refusals import InvalidSql

__all__ = [
    "CompiledTrigger",
    "Ended",
    "Engine",
    "EngineState",
    "Firing",
    "InvalidSql",
    "Outcome",
    "ResultColumn",
    "Suspension",
    "backtest",
    "compile_trigger",
    "periods_read",
]
