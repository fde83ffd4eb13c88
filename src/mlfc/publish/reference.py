"""References to artifacts: ``oci://host/name:tag`` in a registry, ``oci-layout:folder:tag`` in a folder."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from mlfc.errors import OptionError
from mlfc.support.text import shortened

_REGISTRY, _LAYOUT = "oci://", "oci-layout:"
# from OCI's distribution specification; other characters never reach a URL or a path
_HOST = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9.-]{0,252}|\[[0-9A-Fa-f:]{2,45}\])(?::[0-9]{1,5})?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-{1,8})[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_LONGEST = 255
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DEFAULT_TAG = "latest"
_EXAMPLE = "Write oci://HOST/NAME:TAG, or oci-layout:FOLDER:TAG for a folder"


@dataclass(frozen=True)
class ArtifactReference:
    """A reference to artifacts in a registry or folder.

    Attributes
    ----------
    host : str
        Host of the registry, with the port if given; empty for a folder.
    name : str
        The repository, or the path of the folder.
    tag, digest : str or None
        As given. A digest identifies the bytes, regardless of the tag.
    """

    host: str
    name: str
    tag: str | None = None
    digest: str | None = None

    @property
    def repository(self) -> str:
        """The registry or folder without tag and digest, in the notation of users."""
        return f"{_REGISTRY}{self.host}/{self.name}" if self.host else f"{_LAYOUT}{self.name}"

    @property
    def wanted(self) -> str:
        """The digest, the tag, or the default tag."""
        return self.digest or self.tag or _DEFAULT_TAG

    @property
    def is_local(self) -> bool:
        """True if the registry is on this machine, where plain HTTP is usual."""
        name = re.sub(r":[0-9]+$", "", self.host).strip("[]").lower()
        try:
            return name == "localhost" or ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"{self.repository}{f':{self.tag}' if self.tag else ''}{f'@{self.digest}' if self.digest else ''}"


def is_tag(text: str) -> bool:
    """Return True if a text is a valid tag."""
    return _TAG.fullmatch(text) is not None


def parse_reference(text: str) -> ArtifactReference:
    """Return the reference parsed from a text like ``oci://host/name:tag``; raise OptionError for an invalid one."""
    shown = shortened(text, 100)
    if text.startswith(_LAYOUT):
        name, tag, digest = _divided(text.removeprefix(_LAYOUT).removeprefix("//"))
        host, is_valid = "", bool(name) and "\0" not in name
    elif text.startswith(_REGISTRY):
        host, _, rest = text.removeprefix(_REGISTRY).partition("/")
        name, tag, digest = _divided(rest)
        is_valid = len(name) <= _LONGEST and bool(_NAME.fullmatch(name)) and bool(_HOST.fullmatch(host))
    else:
        raise OptionError(f"expected oci://HOST/NAME:TAG, got '{shown}'", next_step=_EXAMPLE)
    if not is_valid or (digest and not DIGEST.fullmatch(digest)) or (tag is not None and not _TAG.fullmatch(tag)):
        what = "a digest is sha256: and 64 hexadecimal digits" if digest else "names are in lower case"
        raise OptionError(f"expected oci://HOST/NAME:TAG, got '{shown}': {what}", next_step=_EXAMPLE)
    return ArtifactReference(host, name, tag, digest or None)


def _divided(text: str) -> tuple[str, str | None, str]:
    """Return name, tag and digest from the part after the scheme and the host."""
    text, _, digest = text.partition("@")
    name, colon, tag = text.rpartition(":")
    # after the colon of a Windows drive is a path
    if not colon or "/" in tag or "\\" in tag:
        return text, None, digest
    return name, tag, digest
