"""Check manifests against the schemas of Kubernetes, Istio, the Gateway API and Linkerd, in an environment of its own.

The types of Kubernetes come from a Python package, the others from the CustomResourceDefinitions in two Go modules.
Fields that a schema does not know are problems. Rules in CEL are not evaluated.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import yaml

PACKAGES = ("jsonschema==4.25.1", "kubernetes-validate==1.37.0", "pyyaml")
MODULES = {
    "istio.io/api@v1.32.0": "kubernetes/customresourcedefinitions.gen.yaml",
    "sigs.k8s.io/gateway-api@v1.5.1": "config/crd/standard/*.yaml",
}
CHECK = """
import json, sys
import jsonschema, kubernetes_validate as core

def closed(schema):
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
        found["type"] = ["integer", "string"]
    return found

schemas, objects = json.load(sys.stdin)
problems = []
for each in objects:
    name = f"{each['kind']} {each['metadata']['name']}"
    key = f"{each['apiVersion']} {each['kind']}"
    if key in schemas:
        schema = schemas[key]
        schema.setdefault("properties", {}).update(
            apiVersion={"type": "string"}, kind={"type": "string"}, metadata={}
        )
        checker = jsonschema.Draft7Validator(closed(schema))
        problems += [f"{name}: {list(e.absolute_path)}: {e.message}" for e in checker.iter_errors(each)]
        continue
    try:
        core.validate(each, "1.34", strict=True)
    except core.ValidationError as error:
        problems.append(f"{name}: {list(error.path)}: {error.message}")
    except core.SchemaNotFoundError:
        problems.append(f"{name}: no schema of {key}")
print(json.dumps(problems))
"""


LINKERD_CRDS = "DEXORDER_LINKERD_CRDS"
"""Variable with the folder ``charts/linkerd-crds/templates/policy`` of Linkerd's sources, which no module has."""


def crd_files() -> list[Path]:
    """Return the files with the definitions; CalledProcessError if a module can't be had."""
    found = sorted(Path(os.environ[LINKERD_CRDS]).glob("*.yaml")) if LINKERD_CRDS in os.environ else []
    for module, pattern in MODULES.items():
        done = subprocess.run(["go", "mod", "download", "-json", module], check=True, capture_output=True, cwd="/")
        found += sorted(Path(json.loads(done.stdout)["Dir"]).glob(pattern))
    return found


def schemas() -> dict[str, Any]:
    """Return the schemas of the definitions by apiVersion and kind."""
    found = {}
    for file in crd_files():
        text = re.sub(r"^.*\{\{.*$", "", file.read_text(), flags=re.M)  # Helm's expressions, in metadata
        for each in yaml.load_all(text, yaml.CSafeLoader):
            if each and each["kind"] == "CustomResourceDefinition":
                spec = each["spec"]
                for version in spec["versions"]:
                    key = f"{spec['group']}/{version['name']} {spec['names']['kind']}"
                    found[key] = version["schema"]["openAPIV3Schema"]
    return found


def install(folder: Path) -> Path:
    """Install the checkers in an environment of their own, and return its Python."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "-q", *PACKAGES], check=True, timeout=600)
    return folder / "bin" / "python"


def problems(python: Path, known: dict[str, Any], objects: list[dict[str, Any]]) -> list[str]:
    """Return a phrase for each field of the objects that its schema does not permit."""
    asked = json.dumps([known, objects], default=str)
    done = subprocess.run([python, "-c", CHECK], input=asked, check=True, capture_output=True, text=True)
    found: list[str] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    documents = [each for each in yaml.safe_load_all(sys.stdin) if each]
    print("\n".join(problems(Path(sys.argv[1]), schemas(), documents)) or f"{len(documents)} objects, no problem")
