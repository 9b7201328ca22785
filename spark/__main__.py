"""``python -m spark`` starts the streaming driver."""

import os

# The JVM is forked from a process that has gRPC threads; it execs at once, so gRPC need not prepare for it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from spark.server import main

if __name__ == "__main__":
    main()
