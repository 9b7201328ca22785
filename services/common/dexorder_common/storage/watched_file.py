"""YAML files that may change while the process runs, validated by a model and read again after a change."""

from __future__ import annotations

from collections.abc import Callable, Sized
from pathlib import Path
from typing import Generic, TypeVar

import structlog
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

log = structlog.get_logger(__name__)
T = TypeVar("T", bound=Sized)
M = TypeVar("M", bound=BaseModel)


class FileModel(BaseModel):
    """Base of the models of YAML files: immutable, without unknown keys; its errors show no value."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def read_yaml(path: Path, model: type[M]) -> M:
    """Read a YAML file and validate it.

    Raises:
        OSError: It can't be read.
        ValueError: It is invalid; the message says where and shows no value, which might be a misplaced secret.
    """
    try:
        return model.model_validate(yaml.safe_load(path.read_bytes()))
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, p['loc'])) or 'file'}: {p['msg']}" for p in error.errors(include_input=False))
        raise ValueError("; ".join(problems)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"not YAML{f', line {mark.line + 1}' if mark else ''}") from None


class WatchedFile(Generic[T]):
    """Current content of a file; an invalid change is logged and the previous content stays in effect.

    Args:
        what: Name of the content in the log, for example "callers".
        read: Reads the file. Its OSError or ValueError passes through on the first read only.
    """

    def __init__(self, path: Path, what: str, read: Callable[[Path], T]) -> None:
        self._path = path
        self._what = what
        self._read = read
        self._stamp = self._stat()
        self._content = read(path)

    def current(self) -> T:
        """Return the content, read again if the file has changed; for any thread."""
        if (stamp := self._stat()) != self._stamp:
            self._stamp = stamp
            try:
                self._content = self._read(self._path)
                log.info(f"{self._what} read", file=str(self._path), **{self._what: len(self._content)})
            except (OSError, ValueError) as error:
                log.error(f"the {self._what} file is invalid; its previous content stays in effect", problem=str(error))
        return self._content

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
