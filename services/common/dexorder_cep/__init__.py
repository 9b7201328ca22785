"""Complex event processing: Flink SQL triggers over candles and trades. Pure. docs/cep.md describes the language."""

from dexorder_cep.compile.compiled import CompiledTrigger, compile_trigger
from dexorder_cep.compile.parameters import periods_read
from dexorder_cep.language.refusals import InvalidSql
from dexorder_cep.run.backtest import backtest
from dexorder_cep.run.engine import Engine
from dexorder_cep.run.engine_state import EngineState
from dexorder_cep.run.outcomes import Ended, Firing, Outcome, ResultColumn, Suspension

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
