"""Settings and errors of the set-up."""

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

PROJECT_ROOT = Path(__file__).resolve().parents[2]


class SetupError(Exception):
    """Something that the suite needs is missing or wrong; the message is one sentence and says what to do."""


class NoJavaError(SetupError):
    """No Java runtime of a usable version was found."""


class ResolveError(SetupError):
    """A resolver could not fetch every jar; another attempt may succeed."""


class SetupConfig(BaseSettings):
    """Where fetched files live and which tools fetch them."""

    model_config = SettingsConfigDict(env_prefix="DEXORDER_SETUP_", frozen=True)

    cache: Path | None = Field(default=None, validation_alias=AliasChoices("DEXORDER_CACHE"))
    """Folder for jars and the Java wrapper; default ``dexorder`` in the user's cache folder."""
    xdg_cache_home: Path | None = Field(default=None, validation_alias=AliasChoices("XDG_CACHE_HOME"))
    """The desktop standard's cache folder; default ``~/.cache``."""
    resolver: Literal["auto", "ivy", "maven"] = "auto"
    """``auto``: Maven where it is installed (but Ivy if it has settings); the other one when the first fails."""
    ivy_settings: Path | None = None
    """An Ivy settings file with the user's mirrors; default ``~/.ivy2/ivysettings.xml`` if there is one."""
    ignore_system_java: bool = False
    """Skip JAVA_HOME and PATH: behave as on a machine without Java. Default false."""

    @property
    def cache_dir(self) -> Path:
        """Absolute folder that holds ``jars/<set>`` and ``java/<runtime>``; it may not exist yet."""
        if self.cache is not None:
            return self.cache.expanduser().absolute()
        # Spec of XDG_CACHE_HOME: a relative or empty value is to be ignored.
        base = self.xdg_cache_home
        return (base if base is not None and base.is_absolute() else Path.home() / ".cache") / "dexorder"


def load() -> SetupConfig:
    """Read the settings.

    Raises:
        SetupError: A variable has a bad value; the message names it.
    """
    try:
        return SetupConfig()
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        raise SetupError(f"DEXORDER_SETUP_{name}: {first['msg']} (got {first['input']!r})") from None
