"""What a connection is protected by: files, and a token that may have to be asked for.

Knows nothing of gRPC, so that credentials can be made, and checked, where there is none. The
channel opens connections with them (channel.py). One of the two modules of the client that read the
environment; ranks.py is the other one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from tokenfeed.errors import InvalidRequest

from .addresses import is_local

Token = str | os.PathLike[str] | Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How a connection is protected. What it holds is never said or logged, nor where it lies;
    repr leaves the token out.

    tls_ca: PEM file of the authorities that servers have to be signed by; None is plaintext.
    tls_cert, tls_key: PEM files of one's own certificate, for servers that ask for one.
    token: a bearer token, the path (a pathlib.Path) of a file with one, or a function that returns
    one; files and functions are asked for each call. It is never sent in plaintext, except to this
    machine. None is no token.

    RemoteBatches takes what is None from the environment: TOKENFEED_TLS_CA, TOKENFEED_TLS_CERT,
    TOKENFEED_TLS_KEY, and TOKENFEED_TOKEN or TOKENFEED_TOKEN_FILE.
    """

    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token: Token | None = field(default=None, repr=False)

    def require_whole(self) -> None:
        """Raise InvalidRequest where a field needs another one that is None."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest("tls_cert", "and tls_key go together")
        if self.tls_cert is not None and self.tls_ca is None:
            raise InvalidRequest("tls_ca", "is missing; it says which servers to trust")

    def read_pems(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return what tls_ca, tls_key and tls_cert hold, as gRPC takes them; None where there is
        none.  Raises: InvalidRequest, its subject one of CREDENTIAL_FIELDS, if a file cannot be
        read, or is no PEM.
        """
        return (
            _pem("tls_ca", self.tls_ca, b"CERTIFICATE"),
            _pem("tls_key", self.tls_key, b"PRIVATE KEY"),
            _pem("tls_cert", self.tls_cert, b"CERTIFICATE"),
        )

    def metadata(self, target: str) -> tuple[tuple[str, str], ...]:
        """Return what a call carries.  Raises: InvalidRequest, its subject "token", where that
        would travel in plaintext, or cannot be had.
        """
        if self.token is None:
            return ()
        if self.tls_ca is None and not is_local(target):
            raise InvalidRequest("token", f"would travel to {target} in plaintext; give tls_ca too")
        token = _resolve_token(self.token)
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise InvalidRequest("token", "is no printable ASCII text")
        return (("authorization", f"Bearer {token}"),)


PLAINTEXT = Credentials()
CREDENTIAL_FIELDS = tuple(one.name for one in fields(Credentials))
"""The subjects of errors that are ours alone: no server can raise them."""


def with_environment(
    credentials: Credentials | None = None, environment: Mapping[str, str] = os.environ
) -> Credentials:
    """Return credentials, with what the environment says for each field that was left out.

    Only then is known what goes together: one field may be given, and the next one come from there.
    Raises: InvalidRequest.
    """
    given = PLAINTEXT if credentials is None else credentials
    if not isinstance(given, Credentials):
        # Not shown: it may be a token.
        raise InvalidRequest("credentials", "has to be made by client.Credentials(...)")
    token_file = environment.get("TOKENFEED_TOKEN_FILE")
    for name in CREDENTIAL_FIELDS:
        # An empty one would be no TLS, or no token, without a word.
        if (value := getattr(given, name)) is not None and not value:
            raise InvalidRequest(name, "is empty; leave it out")
    found = Credentials(
        tls_ca=given.tls_ca or environment.get("TOKENFEED_TLS_CA") or None,
        tls_cert=given.tls_cert or environment.get("TOKENFEED_TLS_CERT") or None,
        tls_key=given.tls_key or environment.get("TOKENFEED_TLS_KEY") or None,
        token=given.token
        or environment.get("TOKENFEED_TOKEN")
        or (Path(token_file) if token_file else None),
    )
    found.require_whole()
    return found


def _read(name: str, path: str | os.PathLike[str]) -> bytes:
    # A number would be taken for a descriptor of this process, and be closed.
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InvalidRequest(name, "is no path")
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidRequest(name, f"cannot be read: {error.strerror}") from error
    except ValueError:
        raise InvalidRequest(name, "is no path") from None


def _pem(name: str, path: str | None, kind: bytes) -> bytes | None:
    if path is None:
        return None
    content = _read(name, path)
    # An empty key or certificate would abort the process, and no authority is every public one:
    # grpcio 1.62 and 1.85.
    if b"-----BEGIN " not in content or kind not in content:
        raise InvalidRequest(name, f"holds no {kind.decode()} in PEM")
    return content


def _resolve_token(token: Token) -> str:
    if isinstance(token, os.PathLike):
        words = _read("token", token).split()
        if len(words) != 1:
            problem = f"its file holds {len(words)} words, not one"
            raise InvalidRequest("token", problem)
        # What is no ASCII is found by who asks.
        return words[0].decode("latin-1")
    if not callable(token):
        return token
    try:
        return token()
    except Exception as error:  # noqa: BLE001 - a stranger's code; what it says may be a secret
        problem = f"the function given raised {type(error).__name__}"
    # Not while that one is handled: a traceback would show it.
    raise InvalidRequest("token", problem)
