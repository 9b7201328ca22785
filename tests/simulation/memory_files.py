"""Files of the triggers' journal in memory: after a kill only what was synced is sure to be there.

Of the rest, a random part survives: a file has any prefix of what was added to it, and the first of the changes of
names are on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random


@dataclass
class _File:
    content: bytes = b""
    synced: bytes = b""


class MemoryFiles:
    """`dexorder_spark.cep.files.Files` that outlive the process.

    Attributes:
        on_step: Called before and after each step; may kill the process.
    """

    def __init__(self, random: Random) -> None:
        self.on_step: Callable[[], None] = lambda: None
        self._random = random
        self._files: dict[str, _File] = {}
        self._on_disk: dict[str, _File] = {}
        self._unsynced: list[Callable[[dict[str, _File]], object]] = []

    def killed(self) -> None:
        """Lose what was not synced, as far as chance has it."""
        random = self._random
        for change in self._unsynced[: random.randrange(len(self._unsynced) + 1)]:
            change(self._on_disk)
        self._unsynced.clear()
        for file in self._on_disk.values():
            if file.content.startswith(file.synced):
                file.content = file.content[: random.randint(len(file.synced), len(file.content))]
            elif random.random() < 0.5:
                file.content = file.synced
            file.synced = file.content
        self._files = dict(self._on_disk)

    def names(self) -> list[str]:
        """See `Files`."""
        return sorted(self._files)

    def read(self, name: str) -> bytes:
        """See `Files`."""
        return self._files[name].content

    def append(self, name: str, data: bytes) -> None:
        """See `Files`."""
        self.on_step()
        self._made(name).content += data
        self.on_step()

    def truncate(self, name: str, size: int) -> None:
        """See `Files`."""
        self.on_step()
        file = self._made(name)
        file.content = file.content[:size]
        self.on_step()

    def sync(self, name: str) -> None:
        """See `Files`."""
        self.on_step()
        self._files[name].synced = self._files[name].content
        self.on_step()

    def rename(self, name: str, to: str) -> None:
        """See `Files`."""
        file = self._files[name]
        self._change(lambda names: names.update({to: file}) or names.pop(name, None))

    def remove(self, name: str) -> None:
        """See `Files`."""
        self._change(lambda names: names.pop(name, None))

    def sync_names(self) -> None:
        """See `Files`."""
        self.on_step()
        self._unsynced.clear()
        self._on_disk = dict(self._files)
        self.on_step()

    def _made(self, name: str) -> _File:
        if name not in self._files:
            file = _File()
            self._change(lambda names: names.update({name: file}))
        return self._files[name]

    def _change(self, change: Callable[[dict[str, _File]], object]) -> None:
        self.on_step()
        change(self._files)
        self._unsynced.append(change)
        self.on_step()
