"""Settings and errors of the set-up."""

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from dexorder.errors import SetupError as SetupError

PROJECT_ROOT = Path(__file__).resolve().parents[2]


class NoJavaError(SetupError):
    """No Java runtime of a usable version was found."""


class ResolveError(SetupError):
    """A resolver could not fetch every jar; another attempt may succeed."""


class SetupConfig(BaseSettings):
    """Location of downloaded files and choice of tools."""

    model_config = SettingsConfigDict(env_prefix="DEXORDER_SETUP_", frozen=True)

    cache: Path | None = Field(default=None, validation_alias=AliasChoices("DEXORDER_CACHE"))
    """Folder for jars and the Java wrapper; default ``dexorder`` in the user's cache folder."""
    xdg_cache_home: Path | None = Field(default=None, validation_alias=AliasChoices("XDG_CACHE_HOME"))
    """User's cache folder of the XDG standard; default ``~/.cache``."""
    resolver: Literal["auto", "ivy", "maven"] = "auto"
    """``auto``: Maven if it is installed and Ivy has no settings, else Ivy; then the other one if the first fails."""
    ivy_settings: Path | None = None
    """Ivy settings file with the user's mirrors; default ``~/.ivy2/ivysettings.xml`` if it exists."""
    ignore_system_java: bool = False
    """Skip JAVA_HOME and PATH, as on a machine without Java. Default false."""

    @property
    def cache_dir(self) -> Path:
        """Return the absolute folder of ``jars/<set>`` and ``java/<runtime>``, which may not exist yet."""
        if self.cache is not None:
            return self.cache.expanduser().absolute()
        # By the XDG specification, a relative or empty value is ignored.
        base = self.xdg_cache_home
        return (base if base is not None and base.is_absolute() else Path.home() / ".cache") / "dexorder"


def load() -> SetupConfig:
    """Read the settings; SetupError names a variable that is invalid."""
    try:
        return SetupConfig()
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        raise SetupError(f"DEXORDER_SETUP_{name}: {first['msg']} (got {first['input']!r})") from None
