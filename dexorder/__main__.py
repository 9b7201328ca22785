"""``python -m dexorder`` is the ``dexorder`` command."""

from dexorder.cli import main

if __name__ == "__main__":
    main()
