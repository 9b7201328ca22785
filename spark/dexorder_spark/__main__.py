"""``python -m dexorder_spark``: run the streaming driver."""

import os

# The JVM is forked from a process with gRPC threads and calls exec immediately, so gRPC need not support the fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from dexorder_spark.server import main

if __name__ == "__main__":
    main()
