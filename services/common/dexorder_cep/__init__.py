"""Complex event processing: Flink SQL triggers over candles and trades. Pure. docs/cep.md describes the language."""

from dexorder_cep.compile.edits import differences
from dexorder_cep.compile.parameters import periods_read
from dexorder_cep.compile.plans import ResultColumn
from dexorder_cep.compile.trigger import CompiledTrigger, compile_trigger
from dexorder_cep.language.refusals import InvalidSql
from dexorder_cep.run.delivery import Firing, Outcome, Registration, Suspension, TriggerEnded
from dexorder_cep.run.engine import Engine, backtest
from dexorder_cep.run.engine_state import EngineState

__all__ = [
    "CompiledTrigger",
    "Engine",
    "EngineState",
    "Firing",
    "InvalidSql",
    "Outcome",
    "Registration",
    "ResultColumn",
    "Suspension",
    "TriggerEnded",
    "backtest",
    "compile_trigger",
    "differences",
    "periods_read",
]
