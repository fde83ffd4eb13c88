"""Artifacts in a real registry and in folders, also read and written by `oras`; signatures and bills of materials."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import oras.layout
import oras.provider
import oras.schemas
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from mlfc.errors import RegistryError
from mlfc.publish.documents import ARTIFACTS, Document
from mlfc.publish.reference import parse_reference
from mlfc.publish.remote import open_store
from mlfc.publish.store import ArtifactStore
from mlfc.publish.transfer import pull, push
from tests.registry_servers import CREDENTIALS, docker_registry
from tests.unit.test_cli import DIGITS, mlfc, succeeded

M4 = "c -mcpu=cortex-m4"


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an archive for hosts, one for a Cortex-M4, and keys."""
    folder = tmp_path_factory.mktemp("artifacts")
    succeeded("compile", DIGITS, "-o", "host.tar", cwd=folder)
    succeeded("compile", DIGITS, "-o", "m4.tar", "--target", M4, "--no-runtime", cwd=folder)
    for name, key in (
        ("key", ec.generate_private_key(ec.SECP256R1())),
        ("other", ec.generate_private_key(ec.SECP384R1())),
    ):
        write_keys(folder, name, key)
    return folder


def write_keys(folder: Path, name: str, key: Any, password: bytes | None = None) -> None:
    kind = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    private, public = serialization.PrivateFormat.PKCS8, serialization.PublicFormat.SubjectPublicKeyInfo
    (folder / f"{name}.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, private, kind))
    (folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, public))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with docker_registry(tmp_path_factory.mktemp("registry") / "r") as host:
        yield host


def failed(*args: object, cwd: Path, **environment: str) -> str:
    """Run the program and return its single error."""
    done = mlfc(*args, cwd=cwd, **environment)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    return done.stderr


@pytest.mark.parametrize("kind", ["registry", "layout"])
def test_what_is_pushed_is_pulled(kind: str, artifacts: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "registry":
        place = f"oci://{request.getfixturevalue('registry')}/me/digits"
    else:
        place = f"oci-layout:{tmp_path / 'layout'}"
    folder = tmp_path / "here"
    shutil.copytree(artifacts, folder)
    succeeded("sign", "host.tar", "--key", "key.pem", cwd=folder)
    said = succeeded("push", "host.tar", "m4.tar", f"{place}:1.0", cwd=folder)
    assert re.fullmatch(rf"{re.escape(place)}@sha256:[0-9a-f]{{64}}", said.splitlines()[-1])
    # the same artifacts give the same bytes
    assert succeeded("push", "host.tar", "m4.tar", f"{place}:1.0", cwd=folder) == said

    succeeded("push", "m4.tar", f"{place}:small", "--no-sbom", "--annotation", "org.example.who=me", cwd=folder)
    assert succeeded("list", place, cwd=folder).splitlines() == ["1.0", "small"]
    listed = json.loads(succeeded("list", f"{place}:1.0", "--json", cwd=folder))
    assert [(item["target"], item["file"], item["signed"]) for item in listed["artifacts"]] == [
        ("c", "host.tar", True),
        (M4, "m4.tar", False),
    ]
    there = tmp_path / "there"
    there.mkdir()
    assert f"there are artifacts for 2 targets: 'c', '{M4}'" in failed("pull", f"{place}:1.0", cwd=there)
    assert "unknown target 'm7'" in failed("pull", f"{place}:1.0", "--target", "m7", cwd=there)
    assert "'2.0' does not exist" in failed("pull", f"{place}:2.0", cwd=there)
    assert not any(there.iterdir())

    succeeded("pull", f"{place}:1.0", "--target", "c", cwd=there)
    succeeded("pull", f"{place}:1.0", "--target", "cortex-m4", "-o", "other.tar", cwd=there)
    succeeded("pull", said.splitlines()[-1], "--target", M4, cwd=there)
    succeeded("pull", f"{place}:small", "-o", "small.tar", cwd=there)
    assert (there / "host.tar").read_bytes() == (folder / "host.tar").read_bytes()
    for name in ("other.tar", "m4.tar", "small.tar"):
        assert (there / name).read_bytes() == (folder / "m4.tar").read_bytes()
    assert {path.name for path in there.iterdir()} == {"host.tar", "host.tar.sig", "other.tar", "m4.tar", "small.tar"}
    succeeded("verify-signature", "host.tar", "--key", folder / "key.pub", cwd=there)

    bill = succeeded("sbom", f"{place}:1.0", "--target", "c", cwd=there)
    assert bill == succeeded("sbom", "host.tar", cwd=there)
    assert "has no bill of materials" in failed("sbom", f"{place}:small", cwd=there)
    documents = [Path(path) for path in (tmp_path / "layout").glob("blobs/sha256/*")] if kind == "layout" else []
    check_documents(documents)


def check_documents(files: list[Path]) -> None:
    """Check manifests and indexes by the schemas of `oras`."""
    for path in files:
        data = path.read_bytes()
        if data.startswith(b"{") and b"schemaVersion" in data:
            value = json.loads(data)
            jsonschema.validate(value, oras.schemas.index if "manifests" in value else oras.schemas.manifest)


def test_add_joins_and_replaces_targets(registry: str, artifacts: Path, tmp_path: Path) -> None:
    place = f"oci://{registry}/add:1"

    def targets() -> list[str]:
        listed = json.loads(succeeded("list", place, "--json", cwd=artifacts))
        return [f"{item['target']}={item['file']}" for item in listed["artifacts"]]

    succeeded("push", "host.tar", place, "--add", cwd=artifacts)
    succeeded("push", "m4.tar", place, "--add", cwd=artifacts)
    succeeded("push", "board=m4.tar", place, "--add", cwd=artifacts)
    assert targets() == ["board=m4.tar", "c=host.tar", f"{M4}=m4.tar"]
    succeeded("push", "board=host.tar", place, "--add", cwd=artifacts)
    assert targets() == ["board=host.tar", "c=host.tar", f"{M4}=m4.tar"]
    succeeded("push", "host.tar", place, cwd=artifacts)
    assert targets() == ["c=host.tar"]
    assert "are both for the target 'c'" in failed("push", "host.tar", "host.tar", place, cwd=artifacts)
    assert "expected an archive or a library" in failed("push", DIGITS, place, cwd=artifacts)
    assert "cannot push to a digest" in failed("push", "host.tar", f"{place}@sha256:{'0' * 64}", cwd=artifacts)
    assert "cannot be set" in failed("push", "host.tar", place, "--annotation", "vnd.mlfc.target=x", cwd=artifacts)
    assert targets() == ["c=host.tar"]


class Interrupted:
    """A store that first calls a function when it stores a document under a tag."""

    def __init__(self, store: ArtifactStore, first: Any) -> None:
        self._store, self._first = store, first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_document(self, name: str, document: Document) -> None:
        if not name.startswith("sha256:"):
            self._first()
        self._store.put_document(name, document)


def test_interrupted_and_concurrent_pushes_leave_whole_tags(registry: str, artifacts: Path, tmp_path: Path) -> None:
    reference = parse_reference(f"oci://{registry}/pushes:1")
    host, m4 = ("", artifacts / "host.tar"), ("", artifacts / "m4.tar")

    def ended() -> None:
        raise KeyboardInterrupt

    store = open_store(reference)
    with pytest.raises(KeyboardInterrupt):
        push(Interrupted(store, ended), [host])
    with pytest.raises(RegistryError, match="'1' does not exist"):
        pull(store, tmp_path / "none.tar")
    push(store, [host])
    with pytest.raises(KeyboardInterrupt):
        push(Interrupted(store, ended), [m4])
    assert pull(store, tmp_path / "first.tar")[0].target == "c"

    # a concurrent push between reading and writing is detected and merged
    others = [m4]

    def another() -> None:
        if others:
            push(open_store(reference), [others.pop()], add=True)

    joined, _ = push(Interrupted(store, another), [("x", host[1])], add=True)
    assert len(joined.manifests) == 2

    failures = []

    def pushing(artifact: tuple[str, Path]) -> None:
        try:
            push(open_store(reference), [artifact])
        except RegistryError as error:
            failures.append(error)

    threads = [threading.Thread(target=pushing, args=[artifact]) for artifact in (host, m4) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    left = tmp_path / "left.tar"
    pull(store, left)
    assert left.read_bytes() in (host[1].read_bytes(), m4[1].read_bytes())


def test_oras_reads_what_is_pushed_and_the_other_way(registry: str, artifacts: Path, tmp_path: Path) -> None:
    place = f"{registry}/both"
    pushed = json.loads(succeeded("push", "m4.tar", f"oci://{place}:1", "--json", cwd=artifacts))
    client = oras.provider.Registry(insecure=True)
    (digest,) = (item["digest"] for item in pushed["artifacts"])
    (file,) = client.pull(f"{place}@{digest}", outdir=str(tmp_path / "out"))
    assert Path(file).read_bytes() == (artifacts / "m4.tar").read_bytes()
    assert "1" in client.get_tags(place)

    typed = f"{artifacts / 'host.tar'}:{ARTIFACTS['archive']}"
    client.push(f"{place}:2", files=[typed], disable_path_validation=True, quiet=True)
    succeeded("pull", f"oci://{place}:2", cwd=tmp_path)
    assert (tmp_path / "host.tar").read_bytes() == (artifacts / "host.tar").read_bytes()
    client.push(f"{place}:3", files=[f"{artifacts / 'key.pub'}"], disable_path_validation=True, quiet=True)
    assert "expected one artifact of mlfc" in failed("pull", f"oci://{place}:3", cwd=tmp_path)

    succeeded("push", "m4.tar", f"oci-layout:{tmp_path / 'layout'}:1", cwd=artifacts)
    oras.layout.Layout(str(tmp_path / "layout")).push_to_registry(client, f"{place}:4", "1")
    succeeded("pull", f"oci://{place}:4", cwd=tmp_path)
    oras.layout.Layout(str(tmp_path / "taken"), validate=False).pull_from_registry(client, f"{place}:4", "5")
    succeeded("pull", f"oci-layout:{tmp_path / 'taken'}:5", "-o", "5.tar", cwd=tmp_path)
    assert (tmp_path / "5.tar").read_bytes() == (artifacts / "m4.tar").read_bytes()


def test_a_registry_that_asks_for_a_password(artifacts: Path, tmp_path: Path) -> None:
    with docker_registry(tmp_path / "r", CREDENTIALS) as host:
        place = f"oci://{host}/x:1"
        docker = tmp_path / "docker"
        docker.mkdir()
        environment = {"HOME": str(tmp_path), "DOCKER_CONFIG": str(docker)}
        assert "access is denied (401)" in failed("push", "m4.tar", place, cwd=artifacts, **environment)
        for password, reply in (("d3Jvbmc6eA==", "access is denied"), ("bWU6Z2VoZWlt", "pushed to")):
            (docker / "config.json").write_text(json.dumps({"auths": {host: {"auth": password}}}))
            done = mlfc("push", "m4.tar", place, cwd=artifacts, **environment)
            assert reply in done.stdout + done.stderr
        succeeded("pull", place, cwd=tmp_path, **environment)
    assert "the connection fails" in failed("pull", place, "-o", "x.tar", cwd=tmp_path)


def test_bills_of_materials_fit_the_schema_and_name_the_parts(artifacts: Path, tmp_path: Path) -> None:
    bill = succeeded("sbom", "host.tar", cwd=artifacts)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    value = json.loads(bill)
    parts = {item["bom-ref"]: item for item in value["components"]}
    shown = json.loads(succeeded("inspect", "host.tar", "--json", cwd=artifacts))
    assert parts["compiler"]["name"] == "mlfc"
    assert parts["model/digits"]["hashes"][0]["content"] == shown["modules"]["digits"]["source"]["sha256"]
    files = {item["path"]: item["sha256"] for item in shown["files"] if re.match(r"runtime/.*\.[chS]$", item["path"])}
    assert {item["name"]: item["hashes"][0]["content"] for item in parts["runtime"]["components"]} == files
    # every file of the runtime declares its licence
    assert all(item["licenses"] == [{"license": {"id": "0BSD"}}] for item in parts["runtime"]["components"])
    assert value["dependencies"] == [{"ref": "artifact", "dependsOn": [*parts]}]

    succeeded("sbom", "m4.tar", "-o", tmp_path / "m4.json", cwd=artifacts)
    small = (tmp_path / "m4.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(small) is None
    assert "runtime" not in small
    shutil.copy(sys.executable, tmp_path / "library.so")  # has the format of a third-party library
    library = succeeded("sbom", "library.so", cwd=tmp_path)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(library) is None
    assert "requires a reference" in failed("sbom", "m4.tar", "--target", "c", cwd=artifacts)


def test_signatures_fit_one_artifact_and_one_key(artifacts: Path, tmp_path: Path) -> None:
    for path in artifacts.iterdir():
        shutil.copy(path, tmp_path)
    write_keys(tmp_path, "locked", ec.generate_private_key(ec.SECP256R1()), b"geheim")
    write_keys(tmp_path, "rsa", rsa.generate_private_key(65537, 1024))

    def verified(*args: object) -> str:
        return failed("verify-signature", *args, cwd=tmp_path)

    assert "m4.tar.sig: the signature cannot be read" in verified("m4.tar", "--key", "key.pub").replace("error: ", "")
    succeeded("sign", "m4.tar", "--key", "key.pem", cwd=tmp_path)
    succeeded("sign", "m4.tar", "--key", "locked.pem", "-o", "locked.sig", cwd=tmp_path, MLFC_KEY_PASSWORD="geheim")
    succeeded("verify-signature", "m4.tar", "--key", "key.pub", cwd=tmp_path)
    succeeded("verify-signature", "m4.tar", "--key", "locked.pub", "--signature", "locked.sig", cwd=tmp_path)
    assert "Key mismatch" in verified("m4.tar", "--key", "other.pub")
    assert "Key mismatch" in verified("m4.tar", "--key", "locked.pub")
    assert "of another artifact" in verified("host.tar", "--key", "key.pub", "--signature", "m4.tar.sig")
    assert "not a signature in the Model Signing" in verified("m4.tar", "--key", "key.pub", "--signature", "key.pub")
    assert "the key cannot be read" in verified("m4.tar", "--key", "missing.pub")
    assert "expected --key" in verified("m4.tar")
    assert "cannot be read" in verified("missing.tar", "--key", "key.pub")

    signature = json.loads((tmp_path / "m4.tar.sig").read_text())
    envelope = signature["dsseEnvelope"]
    changes = [("payload", json.loads((tmp_path / "locked.sig").read_text())["dsseEnvelope"]["payload"][::-1])]
    changes += [("signatures", []), ("signatures", [{"sig": "AAAA", "keyid": ""}]), ("payload", "")]
    for key, value in changes:
        changed = {**signature, "dsseEnvelope": {**envelope, key: value}}
        (tmp_path / "changed.sig").write_text(json.dumps(changed))
        assert "signature" in verified("m4.tar", "--key", "key.pub", "--signature", "changed.sig")

    data = bytearray((tmp_path / "m4.tar").read_bytes())
    data[-5000] ^= 1
    (tmp_path / "m4.tar").write_bytes(data)
    assert "of another artifact, or this one was changed" in verified("m4.tar", "--key", "key.pub")

    def refused(*args: object) -> str:
        return failed("sign", "host.tar", *args, cwd=tmp_path)

    assert "MLFC_KEY_PASSWORD" in refused("--key", "locked.pem")
    assert "expected an elliptic key" in refused("--key", "rsa.pem")
    assert "cannot be signed" in refused("--key", "key.pub")
    assert "excludes --key" in refused("--key", "key.pem", "--identity-token", "x")
    assert not (tmp_path / "host.tar.sig").exists()
    # a changed file is not pushed with its old signature
    shutil.copy(tmp_path / "locked.sig", tmp_path / "host.tar.sig")
    place = f"oci-layout:{tmp_path / 'layout'}:1"
    assert "the signature does not match the content of host.tar" in failed("push", "host.tar", place, cwd=tmp_path)
    assert not (tmp_path / "layout").exists()


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("oras", ["list", "oci://127.0.0.1:1/x"], "registry"),
        ("model_signing", ["sign", "m4.tar", "--key", "key.pem"], "signing"),
    ],
)
def test_missing_packages_are_named(
    package: str, command: list[str], extra: str, artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert f'pip install ".[{extra}]"' in failed(*command, cwd=artifacts)
