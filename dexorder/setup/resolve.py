"""Resolvers of jars: the Ivy that pyspark ships (needs only Java), and Maven.

Both run as commands, take the repositories from the user's settings, and write the jars to a tree
``group.parts/artifact/version/artifact-version[-classifier].jar``, which gives the coordinate of each file.
"""

import importlib.util
import os
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from dexorder.setup import config
from dexorder.setup.config import ResolveError, SetupError
from dexorder.setup.java import Java, trust_options
from dexorder.setup.manifest import WantedSet

TIMEOUT_SECONDS = 900
# The type `jar` alone omits jars packed as OSGi bundles: 7 of Kafka's 55.
_IVY_TYPES = ("jar", "bundle")
_IVY_CACHE = "ivy-cache"

Resolver = Callable[[WantedSet, Path, Java], None]


def find_jars(tree: Path) -> dict[str, Path]:
    """Map ``group:artifact:version[:classifier]`` to its file in a resolved tree."""
    found = {}
    for path in sorted(tree.rglob("*.jar")):
        *group, artifact, version, name = path.relative_to(tree).parts
        classifier = name.removeprefix(f"{artifact}-{version}").removesuffix(".jar").replace("-", ":", 1)
        found[f"{'.'.join(group)}:{artifact}:{version}{classifier}"] = path
    return found


def ivy(wanted: WantedSet, scratch: Path, java: Java) -> None:
    """Resolve with Ivy into ``scratch/tree``.

    ``scratch`` contains its cache too, because a failed download in the user's Ivy cache would fail again. A second
    call with the same ``scratch`` continues the first one. ResolveError if a jar could not be found or downloaded.
    """
    module = scratch / "ivy.xml"
    module.write_text(ivy_module(wanted))
    command = [str(java.executable), *proxy_options(urllib.request.getproxies()), *trust_options(java, scratch)]
    command += ["-cp", str(_ivy_jar()), "org.apache.ivy.Main", "-warn", "-cache", str(scratch / _IVY_CACHE)]
    if (settings := ivy_settings(scratch)) is not None:
        command += ["-settings", str(settings)]
    pattern = "[organisation]/[module]/[revision]/[artifact]-[revision](-[classifier]).[ext]"
    command += ["-ivy", str(module), "-types", *_IVY_TYPES, "-retrieve", f"{scratch / 'tree'}/{pattern}"]
    _run("Ivy", command, {})


def maven(wanted: WantedSet, scratch: Path, java: Java) -> None:
    """Resolve with the installed ``mvn`` into ``scratch/tree``; mirrors, proxies and passwords as in its settings.

    ResolveError if a jar could not be found or downloaded, or ``mvn`` is not installed.
    """
    project = scratch / "pom.xml"
    project.write_text(maven_project(wanted))
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(project), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", "-Dmdep.useRepositoryLayout=true", f"-DoutputDirectory={scratch / 'tree'}"]
    options = [os.environ.get("MAVEN_OPTS", ""), *trust_options(java, scratch)]
    _run("Maven", command, {"JAVA_HOME": str(java.home), "MAVEN_OPTS": " ".join(options).strip()})


def download_folder(resolver: Resolver, scratch: Path) -> Path:
    """Return the folder of a resolver's downloads below ``scratch``."""
    if resolver is not maven:
        return scratch / _IVY_CACHE
    settings = Path.home() / ".m2" / "settings.xml"
    text = settings.read_text() if settings.is_file() else ""
    return maven_repository(text, os.environ.get("MAVEN_OPTS", ""), Path.home())


def maven_repository(settings_xml: str, maven_opts: str, home: Path) -> Path:
    """Return Maven's local repository, by its options, the user's settings or the default. Pure."""
    given = re.search(r"-Dmaven\.repo\.local=(\S+)", maven_opts)
    configured = re.search(r"<localRepository>\s*(.+?)\s*</localRepository>", settings_xml)
    text = given[1] if given else configured[1] if configured else "${user.home}/.m2/repository"
    return Path(text.replace("${user.home}", str(home)))


def ivy_module(wanted: WantedSet) -> str:
    """Return the Ivy file that requests a set."""
    # A Maven dependency's `default` is the jar with its run-time dependencies, `master` the jar alone.
    conf = "default->default" if wanted.transitive else "default->master"
    lines = []
    for coordinate in wanted.coordinates:
        group, artifact, version, *classifier = coordinate.split(":")
        lines.append(
            f'    <dependency org="{group}" name="{artifact}" rev="{version}" conf="{conf}" '
            f'transitive="{str(wanted.transitive).lower()}">'
        )
        lines += [f'<artifact name="{artifact}" type="jar" m:classifier="{each}"/>' for each in classifier]
        lines.append("</dependency>\n")
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n'
        f'  <info organisation="dexorder" module="{wanted.name}"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{''.join(lines)}  </dependencies>\n"
        "</ivy-module>\n"
    )


def maven_project(wanted: WantedSet) -> str:
    """Return the Maven project that requests a set."""
    all_excluded = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    exclusions = "" if wanted.transitive else all_excluded
    lines = []
    for coordinate in wanted.coordinates:
        group, artifact, version, *classifier = coordinate.split(":")
        extra = "".join(f"<classifier>{each}</classifier>" for each in classifier)
        lines.append(
            f"    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version>{extra}{exclusions}</dependency>\n"
        )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n'
        "  <modelVersion>4.0.0</modelVersion>\n"
        f"  <groupId>dexorder</groupId><artifactId>{wanted.name}</artifactId><version>1</version>\n"
        "  <packaging>pom</packaging>\n"
        f"  <dependencies>\n{''.join(lines)}  </dependencies>\n"
        "</project>\n"
    )


def ivy_settings(scratch: Path) -> Path | None:
    """Return the settings file for Ivy: the user's, or one with Maven's mirror; None for Ivy's defaults."""
    if (own := user_ivy_settings()) is not None:
        return own
    maven_settings = Path.home() / ".m2" / "settings.xml"
    mirror = mirror_of_central(maven_settings.read_text()) if maven_settings.is_file() else None
    if mirror is None:
        return None
    made = scratch / "ivysettings.xml"
    made.write_text(
        '<ivysettings><settings defaultResolver="mirror"/><resolvers>'
        f'<ibiblio name="mirror" m2compatible="true" root={quoteattr(mirror)}/></resolvers></ivysettings>\n'
    )
    return made


def user_ivy_settings() -> Path | None:
    """Return the user's Ivy settings file, from DEXORDER_SETUP_IVY_SETTINGS or the default path, or None."""
    given = config.load().ivy_settings
    if given is not None:
        if not given.is_file():
            raise SetupError(f"DEXORDER_SETUP_IVY_SETTINGS: {given} is not a file")
        return given.absolute()
    default = Path.home() / ".ivy2" / "ivysettings.xml"
    return default if default.is_file() else None


def mirror_of_central(settings_xml: str) -> str | None:
    """Return the URL of the mirror of the central repository in a Maven settings text, or None.

    Passwords are not copied: a mirror that requires one needs Ivy settings or Maven itself.
    """
    try:
        root = ElementTree.fromstring(settings_xml)  # noqa: S314 - the user's own file
    except ElementTree.ParseError:
        return None
    for mirror in root.iterfind(".//{*}mirror"):
        of = {part.strip() for part in (mirror.findtext("{*}mirrorOf") or "").split(",")}
        url = (mirror.findtext("{*}url") or "").strip()
        blocked = (mirror.findtext("{*}blocked") or "").strip() == "true"
        if of & {"central", "*", "external:*"} and "!central" not in of and url and not blocked:
            return url
    return None


def proxy_options(proxies: Mapping[str, str]) -> list[str]:
    """Return Java options for the proxies of the environment (Java does not read http_proxy)."""
    options = []
    for scheme in ("http", "https"):
        parts = urllib.parse.urlsplit(proxies.get(scheme, ""))
        if parts.hostname:
            options += [f"-D{scheme}.proxyHost={parts.hostname}", f"-D{scheme}.proxyPort={parts.port or 80}"]
    hosts = [host.strip() for host in proxies.get("no", "").split(",") if host.strip()]
    if options and hosts:
        options.append("-Dhttp.nonProxyHosts=" + "|".join(f"*{h}" if h.startswith(".") else h for h in hosts))
    return options


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError(
            "pyspark is not installed in this environment: install dexorder[suite], or run `make setup` in a checkout"
        )
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise SetupError("Ivy is missing among the jars of the installed pyspark: reinstall pyspark")
    return jars[-1]


def _run(tool: str, command: list[str], extra_env: Mapping[str, str]) -> None:
    env = {**os.environ, **extra_env}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS, env=env)
    except FileNotFoundError:
        raise ResolveError(f"{tool} is not installed ({command[0]} was not found)") from None
    except subprocess.TimeoutExpired:
        raise ResolveError(f"{tool} did not finish within {TIMEOUT_SECONDS} s") from None
    if done.returncode:
        raise ResolveError(f"{tool} failed: {_reason_line(done.stdout + done.stderr)}")


def _reason_line(output: str) -> str:
    """Return the line of a resolver's output that most likely has the reason of its failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" .\t:")]
    for word in (
        "SSLHandshakeException",
        "UnknownHost",
        "Connection",
        "unresolved dependency",
        "download failed",
        "not found",
        "[ERROR]",
    ):
        for line in lines:
            if word.lower() in line.lower():
                return line.strip("[]: ")[:300]
    return lines[-1][:300] if lines else "no output"
