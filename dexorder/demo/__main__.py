"""``python -m dexorder.demo`` runs the demonstration."""

import sys

from dexorder.demo.run import main

if __name__ == "__main__":
    sys.exit(main())
