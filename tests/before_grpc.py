"""Plugin that pyproject.toml loads by ``-p`` before all others, one of which imports gRPC.

Spark's JVM is forked from this process, which has gRPC's threads by then. gRPC's preparation for a fork can abort the
child before it becomes the JVM ("Java gateway process exited"); ours only exec, so it need not prepare. gRPC reads this
once, when it is imported. As in dexorder_spark/__main__.py.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
