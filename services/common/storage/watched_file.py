"""Files people edit while we run: YAML of a model's form, read again when it has changed."""

from __future__ import annotations

from collections.abc import Callable, Sized
from pathlib import Path
from typing import Generic, TypeVar

import structlog
import yaml
from pydantic import BaseModel, ValidationError

log = structlog.get_logger(__name__)
T = TypeVar("T", bound=Sized)
M = TypeVar("M", bound=BaseModel)


def read_yaml(path: Path, model: type[M]) -> M:
    """Read a file of this form.

    Raises:
        OSError: It can't be read.
        ValueError: It is none; says where, and shows no value, which might be a secret put there by mistake.
    """
    try:
        return model.model_validate(yaml.safe_load(path.read_bytes()))
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, p['loc'])) or 'file'}: {p['msg']}" for p in error.errors(include_input=False))
        raise ValueError("; ".join(problems)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"no YAML{f', line {mark.line + 1}' if mark else ''}") from None


class WatchedFile(Generic[T]):
    """What a file says now; a bad change is logged and the state before it stays in force.

    Args:
        what: What it holds, for the log: "callers".
        read: Raises OSError or ValueError; the first time they go to whoever makes this.
    """

    def __init__(self, path: Path, what: str, read: Callable[[Path], T]) -> None:
        self._path = path
        self._what = what
        self._read = read
        self._stamp = self._look()
        self._content = read(path)

    def current(self) -> T:
        """Read again if it has changed; from any thread."""
        if (stamp := self._look()) != self._stamp:
            self._stamp = stamp
            try:
                self._content = self._read(self._path)
                log.info(f"{self._what} read", file=str(self._path), **{self._what: len(self._content)})
            except (OSError, ValueError) as error:
                log.error(f"the {self._what} file is bad; the one before it stays in force", problem=str(error))
        return self._content

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
