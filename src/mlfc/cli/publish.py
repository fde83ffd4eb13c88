"""``mlfc push``, ``mlfc pull``, ``mlfc list``, ``mlfc sign``, ``mlfc verify-signature`` and ``mlfc sbom``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlfc.cli.tables import print_json, print_table
from mlfc.errors import OptionError
from mlfc.support.progress import stage
from mlfc.support.text import printable

if TYPE_CHECKING:
    from mlfc.publish.store import ArtifactStore

PUSH_EXAMPLES = (
    "mlfc push kws.tar oci://ghcr.io/me/kws:1.0",
    "mlfc push kws.tar kws-m4.tar oci://ghcr.io/me/kws:1.0",
    "mlfc push phone=kws.so oci://ghcr.io/me/kws:1.0 --add",
    "mlfc push kws.tar oci-layout:models:1.0",
)
PULL_EXAMPLES = (
    "mlfc pull oci://ghcr.io/me/kws:1.0",
    "mlfc pull oci://ghcr.io/me/kws:1.0 --target cortex-m4 -o kws.tar",
    "mlfc pull oci-layout:models:1.0",
)
LIST_EXAMPLES = ("mlfc list oci://ghcr.io/me/kws", "mlfc list oci://ghcr.io/me/kws:1.0 --json")
SIGN_EXAMPLES = ("mlfc sign kws.tar --key private.pem", "mlfc sign kws.tar")
VERIFY_EXAMPLES = (
    "mlfc verify-signature kws.tar --key public.pem",
    "mlfc verify-signature kws.tar --identity me@example.org --issuer https://accounts.google.com",
)
SBOM_EXAMPLES = ("mlfc sbom kws.tar -o kws.cdx.json", "mlfc sbom oci://ghcr.io/me/kws:1.0 --target cortex-m4")

_Artifact = Annotated[Path, typer.Argument(help="An archive, or a library in any form.")]
_Reference = Annotated[
    str, typer.Argument(metavar="REFERENCE", help="oci://HOST/NAME:TAG, or oci-layout:FOLDER:TAG for a folder.")
]


@dataclass(frozen=True)
class RegistryOptions:
    """Transport and credentials of a registry."""

    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Use HTTP without TLS, as for registries of this machine.")
    ] = False
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.01, help="Give up after this time without data from the registry.")
    ] = 30.0

    def store(self, reference: str) -> ArtifactStore:
        """Return the store that a reference names."""
        from mlfc.publish.reference import parse_reference
        from mlfc.publish.remote import open_store

        return open_store(parse_reference(reference), plain_http=self.plain_http, timeout=self.timeout)


def push(
    artifacts: Annotated[
        list[str],
        typer.Argument(
            metavar="ARTIFACT", help="Archives or libraries, one for each target; NAME=FILE names the target."
        ),
    ],
    reference: _Reference,
    add: Annotated[bool, typer.Option("--add", help="Keep the tag's artifacts for other targets.")] = False,
    annotation: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An annotation of the artifacts; repeatable.")
    ] = None,
    sbom: Annotated[
        bool, typer.Option("--sbom/--no-sbom", help="Attach a bill of materials to each (default).")
    ] = True,
    *,
    registry: RegistryOptions,
    as_json: bool = False,
) -> None:
    """Push artifacts to an OCI registry or image layout.

    An image layout is a folder. All artifacts of a tag are in one index, each under the name of its target. A signature
    beside an artifact (kws.tar and kws.tar.sig) is pushed with it. The tag changes only after the push is complete.
    """
    from mlfc.publish.transfer import push as pushed_to

    named = [_named(text) for text in artifacts]
    annotations = {}
    for text in annotation or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"expected KEY=VALUE, got '{text}'", place="--annotation")
        annotations[key] = value
    store = registry.store(reference)
    with stage(f"pushing to {reference}"):
        document, done = pushed_to(store, named, annotations=annotations, add=add, sbom=sbom)
    if as_json:
        entries = [item.to_json() for item in done]
        print_json({"reference": str(store.reference), "digest": document.digest, "artifacts": entries})
        return
    rows = [(item.target, item.title, item.artifact.size, "yes" if item.signature else "no") for item in done]
    print_table(f"pushed to {store.reference}", ("target", "file", "bytes", "signed"), rows)
    typer.echo(printable(f"{store.reference.repository}@{document.digest}"))


def pull(
    reference: _Reference,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: the name it was pushed with.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Target, or a word of it, if there are several.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Without -o: replace an existing file.")] = False,
    *,
    registry: RegistryOptions,
    as_json: bool = False,
) -> None:
    """Pull an artifact from an OCI registry or image layout.

    Its signature, if it has one, is stored beside it (FILE.sig). Sizes and digests are checked before the file gets its
    name. To check the signer, use verify-signature.
    """
    from mlfc.publish.transfer import pull as pulled_from

    store = registry.store(reference)
    with stage(f"pulling {reference}"):
        found, file, signature = pulled_from(store, output, target, force=force)
    if as_json:
        files = {"output": str(file), "signature": str(signature) if signature else None}
        digest = {"digest": found.manifest.digest, "bytes": found.artifact.size}
        print_json({**files, "target": found.target, "kind": found.kind, **digest})
        return
    typer.echo(printable(f"{file}: {found.kind} for '{found.target}', {found.artifact.size:,} bytes"))
    if signature:
        typer.echo(printable(f"{signature}: signature; check it: mlfc verify-signature {file} --key PUBLIC.pem"))


def list_artifacts(
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="oci://HOST/NAME for its tags, with :TAG for its artifacts.")
    ],
    *,
    registry: RegistryOptions,
    as_json: bool = False,
) -> None:
    """List the tags of a repository, or artifacts of a tag."""
    from mlfc.publish.transfer import entries, read_entry

    store = registry.store(reference)
    place = store.reference
    if place.tag is None and place.digest is None:
        # fallback tags for manifests attached to another one, in registries without a list of these
        tags = [tag for tag in store.tags() if not re.fullmatch(r"sha256-[0-9a-f]{64}", tag)]
        if as_json:
            print_json({"reference": str(place), "tags": tags})
        else:
            typer.echo("".join(f"{printable(tag)}\n" for tag in tags), nl=False)
        return
    found = [read_entry(store, entry) for entry in entries(store)]
    if as_json:
        print_json({"reference": str(place), "artifacts": [item.to_json() for item in found]})
        return
    rows = [
        (item.target, item.kind, item.title, item.artifact.size, "yes" if item.signature else "no") for item in found
    ]
    print_table(str(place), ("target", "kind", "file", "bytes", "signed"), rows)


def sign(
    artifact: _Artifact,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The private key as PEM: P-256, P-384 or P-521; MLFC_KEY_PASSWORD decrypts it. Default: sigstore,"
            " online, with the identity of a CI service or of a browser's login.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: ARTIFACT.sig.")
    ] = None,
    identity_token: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="For sigstore: a token of an OpenID provider.")
    ] = None,
) -> None:
    """Sign an artifact in the OpenSSF Model Signing format.

    push includes the signature.
    """
    from mlfc.publish.signing import sign as sign_file

    if key is not None and identity_token is not None:
        raise OptionError("option --identity-token excludes --key", next_step="Remove one of them")
    made = sign_file(artifact, key, output, token=identity_token)
    typer.echo(printable(f"{made}: signature of {artifact}"))


def verify_signature(
    artifact: _Artifact,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The public key as PEM.")] = None,
    signature: Annotated[Path | None, typer.Option(metavar="FILE", help="Default: ARTIFACT.sig.")] = None,
    identity: Annotated[
        str | None, typer.Option(metavar="NAME", help="With sigstore: the identity of the signer.")
    ] = None,
    issuer: Annotated[
        str | None, typer.Option(metavar="URL", help="With sigstore: the issuer of the identity.")
    ] = None,
) -> None:
    """Verify the signature of an artifact.

    With --key, it must be signed with that key; with --identity and --issuer, by that identity at sigstore. The exit
    status is 2 if the verification fails.
    """
    from mlfc.publish.signing import verify_signature as verify_file

    if (key is None) == (identity is None) or (identity is None) != (issuer is None):
        raise OptionError(
            "expected --key, or --identity and --issuer", next_step="Add the public key: --key PUBLIC.pem"
        )
    verify_file(artifact, key, signature, identity=identity, issuer=issuer)
    typer.echo(printable(f"{artifact}: signed by {key or identity}"))


def sbom(
    artifact: Annotated[
        str, typer.Argument(help="An archive, or a library in any form; or a reference, for the attached one.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: standard output.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="With a reference: target, if there are several artifacts.")
    ] = None,
    *,
    registry: RegistryOptions,
) -> None:
    """Write the bill of materials of an artifact.

    The format is CycloneDX 1.6 as JSON; push attaches it. It lists the compiler, each model with the hash of its
    source, the files of the C runtime with their licences, and external code generators.
    """
    from mlfc.support.atomic import write_bytes

    if artifact.startswith(("oci://", "oci-layout:")):
        from mlfc.publish.transfer import attached_bill

        bill = attached_bill(registry.store(artifact), target)
    else:
        from mlfc.publish.subject import bill_of_materials, read_subject

        if target is not None:
            raise OptionError("option --target requires a reference, such as oci://HOST/NAME:TAG")
        bill = bill_of_materials(read_subject(artifact))
    if output is None:
        typer.echo(printable(bill.decode(errors="replace")), nl=False)
    else:
        write_bytes(output, bill)


def _named(text: str) -> tuple[str, Path]:
    """Return the target name, empty without one, and the file, of a text like ``phone=kws.so``."""
    name, equals, path = text.partition("=")
    # a file may be called a=b.tar
    return (name, Path(path)) if equals and not Path(text).exists() else ("", Path(text))


COMMANDS = (
    ("push", push, PUSH_EXAMPLES),
    ("pull", pull, PULL_EXAMPLES),
    ("list", list_artifacts, LIST_EXAMPLES),
    ("sign", sign, SIGN_EXAMPLES),
    ("verify-signature", verify_signature, VERIFY_EXAMPLES),
    ("sbom", sbom, SBOM_EXAMPLES),
)
