"""Complex event processing: Flink SQL triggers over candles and trades. Pure. docs/cep.md describes the language."""

from dexorder_cep.backtest import backtest
from dexorder_cep.compiled import CompiledTrigger, compile_trigger
from dexorder_cep.engine import Engine
from dexorder_cep.engine_state import EngineState
from dexorder_cep.outcomes import Ended, Firing, Outcome, ResultColumn, Suspension
from dexorder_cep.parameters import periods_read
from dexorder_cep.refusals import InvalidSql

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
