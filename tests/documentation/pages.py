"""Each code block of README and the documentation, and what becomes of it, in the order of the pages.

What a page takes for granted is made here: files and requests from earlier, a session of Spark, a user with a session,
and other names of exchanges and addresses, as the exchange is the simulated one.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.documentation import readers
from tests.documentation.entries import NotRun, Page, Read, Run, Saved
from tests.documentation.running import CTRL_C
from tests.paths import ROOT

INTERRUPTED = "dexorder history SOL/USDT.SIM 1m --since 2024-01 --until 2024-02 --timeout 0"
WATCH = {"dexorder watch": f"{CTRL_C} 'trade time' dexorder watch"}
SECONDS = {"-p fire=level": "-p fire=level -p period=1"}
"""Candles of a second, for which nobody waits minutes."""
IT_RUNS = "until dexorder realtime list | grep -q 'running.*trades.*Z'; do sleep 0.5; done"
"""Waits until trades are settled; the first candle takes a minute."""
STORED = """
import time
assert tickers.num_rows
while not trades.num_rows:
    time.sleep(1)
    trades = client.trades("BTC/USDT.SIM", "-1h")
"""
SUBSCRIBE = """grpcurl -plaintext -d '{"topic":"HISTORY"""
ON_CI = "CI runs it"
INSTALLS = "bench/front_door.py installs each extra"
OF_ITS_OWN = "run by tests/newcomer"
CLUSTER = "needs a cluster"
DOCKER = "needs a Docker daemon"
DIAGRAM = "a diagram"
TIME = r"\[ *[\d.]+ s\]"
"""Time since the start, in a line of progress."""
NUMBERS = r"-?\d[\d,.]*"
SHAPE = "python -m tests.documentation.shape $BLOCK"
ALICE = """
import atexit, os, subprocess
session = subprocess.Popen("dexorder events tail --user alice --key dexorder-data/jwt-keys/suite.key".split())
atexit.register(session.kill)
for name, place in (("FAST", 6), ("GUARANTEED", 7)):
    os.environ[f"DEXORDER_PUBLISHER_{name}"] = f"tcp://127.0.0.1:{int(os.environ['BASE_PORT']) + place}"
"""
"""A session of a user, as long as the page's programs run."""
HISTORY = "dexorder history BTC/USDT.SIM 1h --since 2024-01-01 --until 2024-01-15 --quiet --rows 0"
SPARK = """
import os
from pathlib import Path
from dexorder_common.lake.catalog import CatalogSettings
from dexorder.setup.java import java_env
from dexorder_spark.config import SparkSettings
from dexorder_spark.runtime.session import build_session
os.environ.update(java_env())
lake = CatalogSettings.local(Path("lake").absolute(), "dexorder")
Path("lake").mkdir()
spark = build_session(SparkSettings(listen="127.0.0.1:0", metrics_listen=""), lake)
written = []
def write(batch, number):
    written.append(batch.count())
"""

PYNUMAFLOW = """
from tests.peers.memory_source import memory_source
numaflow = memory_source(Path.cwd(), records=100, redeliver=True)
source = numaflow.__enter__()
"""
MUTUAL_TLS = """
python - <<END
from pathlib import Path
from tests.fixtures_tls import Authority
authority = Authority(Path("."))
authority.client("me")
pair = authority.server()
pair.certificate.rename("relay.pem")
pair.key.rename("relay.key")
END
set -a
. $BLOCK
DEXORDER_RELAY_LISTEN=127.0.0.1:$FREE_PORT DEXORDER_RELAY_METRICS_LISTEN= \\
DEXORDER_RELAY_BROKER_LISTEN=tcp://127.0.0.1:0 dexorder serve relay > relay.log 2>&1 &
until dexorder requests list --relay 127.0.0.1:$FREE_PORT; do kill -0 $!; sleep 0.2; done
unset DEXORDER_CHANNEL_TLS_CERTIFICATE DEXORDER_CHANNEL_TLS_KEY
dexorder requests list --relay 127.0.0.1:$FREE_PORT || echo refused as it has no certificate
"""
DUCKDB = """python - <<END
import duckdb
from pathlib import Path
from pyiceberg.catalog import load_catalog
from dexorder import Client
name, properties = Client().catalog()
database = load_catalog(name, **properties).load_table("trading.udf_average").scan().to_duckdb("udf_average")
database.execute("CREATE SCHEMA trading; CREATE VIEW trading.udf_average AS SELECT * FROM main.udf_average")
database.sql(Path("$BLOCK").read_text()).show()
END
"""

PAGES: Mapping[str, Page] = {
    "ARCHITECTURE.md": Page((NotRun("            requests 50051", DIAGRAM),)),
    "CONTRIBUTING.md": Page((NotRun("make quick", ON_CI), NotRun("make setup", ON_CI))),
    "README.md": Page(
        (
            NotRun("git clone", ON_CI),
            Run("$ dexorder up", {"dexorder up": "cat $SUITE/up.log"}, unlike=rf"{TIME}|chart: .*"),
            Run("from dexorder import Client", then="assert len(frame) == 336"),
            Run("dexorder coverage BTC/USDT.SIM", {**WATCH, "tail ID": "list"}),
        ),
    ),
    "docs/cep.md": Page(
        tuple(
            Run(begins, by=f"dexorder trigger test @$BLOCK -t BTC/USDT.SIM --since -2h --rows 3 --no-chart{more}")
            for begins, more in (
                ("SELECT ticker, ts, close FROM ohlc_5m", ""),
                ("SELECT ticker, ts, close FROM (", ""),
                ("SELECT ticker, window_end", ""),
                ("SELECT * FROM ohlc MATCH_RECOGNIZE", ""),
                ("close CROSSES ABOVE :level", " --param level=70000"),
            )
        ),
        prepared_by="for period in 1m 5m; do dexorder history BTC/USDT.SIM $period --since -2h --quiet --rows 0; done",
    ),
    "docs/coming-from-ccxt.md": Page(
        (
            Run("# ccxt", then="assert (len(candles), table.num_rows) == (1000, 31 * 24)"),
            Run("freqtrade download-data", {"freqtrade ": "true freqtrade "}),
            Run("frame = table.to_pandas()"),
        ),
        names="""
import os, types
import ccxt as real
def simulated():
    exchange = real.binance({"options": {"fetchMarkets": {"types": ["spot"]}}})
    base = f"http://127.0.0.1:{int(os.environ['BASE_PORT']) + 8}"
    exchange.urls["api"]["public"] = f"{base}/api/v3"
    return exchange
ccxt = types.SimpleNamespace(binance=simulated)
""",
    ),
    "docs/coming-from-kafka-pixy.md": Page(
        (
            Run(
                "DEXORDER_ALLOW_INSECURE=1 dexorder serve gateway",
                {
                    "/etc/kafka-pixy.yaml    # or": "kafka-pixy.yaml &\n"
                    "until curl -sf localhost:$((FREE_PORT + 1))/_ping; do kill -0 $!; sleep 0.2; done\n"
                    "kill $!; wait $!  #",
                },
            ),
            Run(
                "dexorder serve gateway -kafkaPeers",
                {
                    "kafka-1:9092,kafka-2:9092": "127.0.0.1:$((BASE_PORT + 3))",
                    "127.0.0.1:19091": "127.0.0.1:$((FREE_PORT + 2))",
                    "-tcpAddr 127.0.0.1:19092": "-tcpAddr=127.0.0.1:$((FREE_PORT + 3)) &\n"
                    "until curl -sf localhost:$((FREE_PORT + 3))/topics; do kill -0 $!; sleep 0.2; done",
                },
            ),
            Read("grpc_addr:", readers.kafka_pixy),
        ),
        prepared_by="""cat > kafka-pixy.yaml <<END
grpc_addr: 0.0.0.0:$FREE_PORT
tcp_addr: 0.0.0.0:$((FREE_PORT + 1))
proxies:
  default:
    kafka: {seed_peers: ["127.0.0.1:$((BASE_PORT + 3))"]}
END
""",
    ),
    "docs/coming-from-kapacitor.md": Page(
        (Read("[udf.functions", readers.kapacitor), Read("udfs:", readers.udfs)),
    ),
    "docs/coming-from-numaflow.md": Page((NotRun("kubectl apply", CLUSTER),)),
    "docs/command.md": Page(
        (
            Run("{request_id, ticker", by=f"{HISTORY} --json | {SHAPE}"),
            Run("{ticker, period_seconds, row_count", by=f"dexorder read BTC/USDT.SIM 1h --json | {SHAPE}"),
            Run("{kind:", by=f"dexorder coverage BTC/USDT.SIM 1h --detail --json | {SHAPE}"),
            Run("{ticker, period_seconds, since", by=f"dexorder verify BTC/USDT.SIM 1h --json --repair | {SHAPE}"),
            Run("from dexorder import Client", until="OK"),
        ),
        prepared_by=f"{HISTORY} --client-id me",
    ),
    "docs/exchanges.md": Page((Run("$ dexorder doctor --exchange", unlike=NUMBERS),)),
    "docs/gateway-events.md": Page(
        (
            NotRun("container XPUB", DIAGRAM),
            Run(
                "dexorder up --only gateway",
                {
                    "dexorder up --only gateway": "mkdir only && cd only\n"
                    "dexorder up --only gateway --base-port $FREE_PORT > up.log 2>&1 &\n"
                    "until grep -q 'ready: gateway' up.log; do kill -0 $!; sleep 0.2; done  #",
                    "suite.key      # a session": "suite.key &    #",
                },
            ),
            Run("from dexorder.events import Publisher", prints="DELIVERED"),
            Read("containers:", readers.containers),
            Run("python -m dexorder_common.messaging.curve"),
            Run(
                "client   {",
                by="export TOKEN=$(dexorder events token alice --key dexorder-data/jwt-keys/suite.key)\n"
                "python -m tests.documentation.websocket $BLOCK 127.0.0.1:$((BASE_PORT + 9))",
            ),
        ),
        names=ALICE,
    ),
    "docs/gateway-kafka.md": Page(
        (
            Run("grpcurl -plaintext", {"KafkaPixy/ConsumeNAck": "KafkaPixy/ConsumeNAck || true"}),
            Run("grpcurl -plaintext"),
            Run("curl -X POST"),
        ),
        tools=("grpcurl", "curl"),
    ),
    "docs/grpcurl.md": Page(
        (
            Run(
                "$ grpcurl",
                {SUBSCRIBE: f"{CTRL_C} completed_at {SUBSCRIBE}"},
                unlike=r'"(epoch|sequence|oldest_sequence|count|offset)": "\w+"',
            ),
        ),
        tools=("grpcurl",),
    ),
    "docs/ingestor.md": Page((Read("exchanges:", readers.exchanges),)),
    "docs/other-languages.md": Page(
        (
            NotRun("$ go run .", "run by tests/nightly/test_other_languages.py"),
            Run("buf export"),
            Run("# buf.yaml", by="cp $BLOCK buf.yaml && buf build"),
        ),
        prepared_by=f"""
export REPOSITORY=$PWD/repository
mkdir work proto && cp -r '{ROOT}/protos' '{ROOT}/buf.yaml' work
cd work && git init -q && git add . && git -c user.name=a -c user.email=a commit -qm a && git tag v0.1.0 && cd ..
git clone -q --bare work repository.git
cat > proto/mine.proto <<END
syntax = "proto3";
package mine;
import "dexorder/market/v1/ohlcv.proto";
END
""",
        changed={"$REPOSITORY": "$PWD/repository"},
    ),
    "docs/mesh.md": Page((NotRun("mesh: istio", CLUSTER),)),
    "docs/packages.md": Page((NotRun("pip install", INSTALLS),)),
    "docs/parts-alone.md": Page(
        tuple(
            NotRun(begins, "needs an environment for each part, as tests/nightly/test_installs.py makes")
            for begins in (
                "export DEXORDER_UDSOURCE_KAFKA",
                "python -m dexorder_gateway.events",
                "dexorder events tail",
            )
        )
    ),
    "docs/production.md": Page(
        (
            NotRun("docker build", DOCKER),
            NotRun("mkdir -p deploy/jwt-keys", DOCKER),
            NotRun("HISTORY_READY", DOCKER),  # the last line of the block before
            NotRun("helm install", CLUSTER),
            NotRun("kubectl --namespace dexorder create", CLUSTER),
            NotRun("kubectl --namespace dexorder delete", CLUSTER),
            NotRun("kubectl apply", CLUSTER),
            Read("DEXORDER_GATEWAY_KAFKA=", readers.kafka_options),
            NotRun("python -m dexorder.setup fetch", "run by tests/integration/production/test_cluster.py"),
            NotRun("python -m dexorder_spark.runtime.package", "run by tests/integration/production/test_cluster.py"),
            Run("from dexorder import Client", then="assert rows.num_rows == 31 * 24 * 60"),
        )
    ),
    "docs/protocol.md": Page((Run("python -m dexorder_common.messaging.curve"),)),
    "docs/reading-the-data.md": Page(
        (
            Run("from dexorder import Client", then="assert len(days.days) == 31"),
            Run("from dexorder import Client", then="assert rows.num_rows == 30"),
            Run("with Client() as client:", then="assert batches > 0"),
            Run("from pyiceberg.catalog", then="assert arrow.num_rows == newest.to_arrow().num_rows == 30"),
            Run("frame = announced", then="assert (len(frame), len(daily)) == (30, 2)"),
            Run("closes = announced", then="assert closes.shape == (30, 2)"),
            Run("database = announced", then="assert days.num_rows == 2"),
            Run("from pyspark.sql", then="assert current.count() >= 30 and pinned.count() >= 30"),
            Run("from datetime import", then="assert seen.tzinfo is not None"),
        ),
    ),
    "docs/last-mile.md": Page(
        (
            Run("dexorder history BTC/USDT.SIM 1h"),
            Run("from dexorder import Client", then="assert path.name == 'BTC_USDT-1h.feather'"),
            Run("from dexorder import Client", then="assert len(rows) == 336"),
            Run("daily = rows", then="assert daily.shape == (14, 2)"),
            Run("daily_high = ", then="assert len(daily_high.fetchall()) == 14"),
            Run("$ dexorder sql", unlike=NUMBERS),
        ),
        prepared_by=HISTORY,
        names="import duckdb, polars as pl",
    ),
    "docs/receipts.md": Page(
        (
            Run("$ dexorder receipt make", unlike=r"receipt [0-9a-f]{16}"),
            Run("from dexorder import Client", prints=r"True \(\) \(\)"),
            NotRun("WITH lines", "tests/unit/services/relay/service/test_receipts.py runs it"),
        ),
        prepared_by=HISTORY,
    ),
    "docs/realtime.md": Page(
        (
            Run(
                "$ dexorder realtime start",
                {
                    "$ dexorder realtime list": f"$ {IT_RUNS}; dexorder realtime list",
                    "$ dexorder watch": f"$ {WATCH['dexorder watch']}",
                },
                unlike=rf"{NUMBERS}|\S+-\d+(?= +trades)",
                apart=r"vm-\d+ +1m",
            ),
            Run("from dexorder import Client", then=STORED),
            Run("for update in client.live", until="open"),
            Run("client.stop_realtime"),
        ),
    ),
    "docs/security.md": Page(
        (
            Run("# each server", by=MUTUAL_TLS, prints="refused as it has no certificate"),
            Read("callers:", readers.callers),
            Read("callers:", readers.callers_of_a_mesh),
        )
    ),
    "docs/spark-source.md": Page(
        (
            NotRun("pip install", INSTALLS),
            Run("from dexorder_spark.source.udsource import UdSource"),
            Run(
                "records = (",
                then="query.processAllAvailable()\nquery.stop()\n"
                'assert spark.table("dexorder.raw.records").count() >= records.count() > 0',
            ),
            Run(
                'socket = "unix:',
                {'"unix:/var/run/numaflow/source.sock"': "source.target"},
                then="while sum(written) < 100:\n    query.processAllAvailable()\n"
                "query.stop()\nassert sum(written) == 100, written",
            ),
            Run(
                "from dexorder_spark.source.udsource import decoding_source",
                then='query = rows.writeStream.format("memory").queryName("decoded").start()\n'
                'query.processAllAvailable()\nquery.stop()\nassert spark.table("decoded").count() > 0',
            ),
            Run(
                "stream = ",
                {").start()": ").start().awaitTermination()"},
                then="assert sum(written) >= 100 + records.count()",
            ),
        ),
        prepared_by=HISTORY,
        names=SPARK + PYNUMAFLOW,
    ),
    "docs/tracing.md": Page(
        (NotRun("OTEL_EXPORTER", "set by tests/smoke/test_tracing.py"), Read("dexorder.history", readers.trace))
    ),
    "docs/triggers.md": Page(
        (
            Run("$ dexorder trigger add", SECONDS, unlike=NUMBERS, apart="[┃│▲▂┤]"),
            Saved("SELECT * FROM ohlc", "three-falls.sql"),
            Run("from dexorder import Client", {'{"cooldown": "300"}': '{"fire": "level", "period": "1"}'}),
            Run("answers = client.triggers"),
            Run("for event in client", until="BTC/USDT"),
            Run("answer = client.triggers.edit"),
        ),
        prepared_by="dexorder history BTC/USDT.SIM 1m --since -6h --quiet --rows 0",
    ),
    "docs/tutorial.md": Page(
        (
            NotRun("python3 -m venv", OF_ITS_OWN),
            *(NotRun(begins, OF_ITS_OWN) for begins in ("dexorder up", "$ dexorder status", "$ dexorder markets")),
            *(NotRun("$ dexorder", OF_ITS_OWN) for _ in range(4)),
            NotRun("from dexorder", OF_ITS_OWN),
            Run("dexorder watch", WATCH),
            NotRun("$ dexorder events", OF_ITS_OWN),
            NotRun("dexorder up --exchanges binance", "needs a real exchange"),
        )
    ),
    "docs/udf.md": Page(
        (
            Run("dexorder udf functions", {"tail -f": "tail"}),
            Read("[udf.functions", readers.kapacitor),
            Saved("from dataclasses", "my_udf.py"),
            Read("# Sessions of trades", readers.program),
            Read("from dexorder.udf import run_function", readers.program),
        ),
        prepared_by=f"""
{HISTORY} --out candles.parquet
{HISTORY} --out candles.csv
for second in 00 01 59 60 61; do
  echo "{{\\"time\\": 17040672$second, \\"ticker\\": \\"BTC/USDT.SIM\\", \\"price\\": 44000.5, \\"amount\\": 0.1}}"
done > trades.jsonl
""",
    ),
    "docs/udf-stream.md": Page(
        (
            Read("# udfs.yaml", readers.udfs),
            Run("dexorder udf start", {"--follow": ""}),
            Run("SELECT", by=DUCKDB),
        ),
    ),
    "docs/udsource.md": Page((NotRun("pip install", INSTALLS),)),
    "services/common/dexorder_cep/README.md": Page((Read("from dexorder_cep", readers.program),)),
    "services/common/dexorder_udf/README.md": Page((Read("import sys", readers.program),)),
}
