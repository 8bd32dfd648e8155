"""Credentials of a connection: TLS files, and a bearer token from a text, a file or a function.

Knows nothing of gRPC, so credentials can be created and checked without it. channel.py opens
connections with them. A field that is None may come from the environment.
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
    """TLS files and a bearer token for the connections to servers. The contents and paths of the
    files never appear in errors or logs, and repr omits the token.

    tls_ca: PEM file of the authorities that sign the servers' certificates; with None the
    connection is plaintext. tls_cert, tls_key: PEM files of the client's certificate and its
    private key, for servers that require a client certificate. token: a bearer token, the path (a
    pathlib.Path) of a file with one, or a function that returns one. The file is read, or the
    function called, for each request. Without TLS the token is sent only to servers on this
    machine. With None no token is sent.

    For each field that is None, RemoteBatches looks at the environment: TOKENFEED_TLS_CA,
    TOKENFEED_TLS_CERT, TOKENFEED_TLS_KEY, and TOKENFEED_TOKEN or TOKENFEED_TOKEN_FILE.
    """

    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token: Token | None = field(default=None, repr=False)

    def require_whole(self) -> None:
        """Raise InvalidRequest if a field is set without another field that it requires."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest("tls_cert", "and tls_key have to be given together")
        if self.tls_cert is not None and self.tls_ca is None:
            raise InvalidRequest("tls_ca", "is missing; pass the authority of the servers to trust")

    def read_pems(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the contents of tls_ca, tls_key and tls_cert, in gRPC's order; None for a field
        that is None.  Raises: InvalidRequest, its subject one of CREDENTIAL_FIELDS, if a file
        cannot be read, or is not PEM.
        """
        return (
            _pem("tls_ca", self.tls_ca, b"CERTIFICATE"),
            _pem("tls_key", self.tls_key, b"PRIVATE KEY"),
            _pem("tls_cert", self.tls_cert, b"CERTIFICATE"),
        )

    def metadata(self, target: str) -> tuple[tuple[str, str], ...]:
        """Return the gRPC metadata that carries the token. Raises: InvalidRequest, its subject
        "token", if the token would be sent in plaintext to another machine, or cannot be read.
        """
        if self.token is None:
            return ()
        if self.tls_ca is None and not is_local(target):
            raise InvalidRequest(
                "token", f"would be sent to {target} in plaintext; pass tls_ca too"
            )
        token = _resolve_token(self.token)
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise InvalidRequest("token", "is not printable ASCII text")
        return (("authorization", f"Bearer {token}"),)


PLAINTEXT = Credentials()
CREDENTIAL_FIELDS = tuple(each.name for each in fields(Credentials))
"""The subjects of credential errors, which only the client raises, never a server."""


def with_environment(
    credentials: Credentials | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    token: str = "TOKENFEED_TOKEN",
) -> Credentials:
    """Return credentials, with each field that is None taken from the environment.

    token: the variable of the token; that of its file has "_FILE" behind it.

    Fields that belong together may come from both places, so they are checked afterwards.
    Raises: InvalidRequest.
    """
    given = PLAINTEXT if credentials is None else credentials
    if not isinstance(given, Credentials):
        # The value is not shown: it may be a token.
        raise InvalidRequest("credentials", "is not valid; pass tokenfeed.Credentials(...)")
    token_file = environment.get(f"{token}_FILE")
    for name in CREDENTIAL_FIELDS:
        # An empty value would silently mean no TLS, or no token.
        if (value := getattr(given, name)) is not None and not value:
            raise InvalidRequest(name, "is empty; omit it")
    complete = Credentials(
        tls_ca=given.tls_ca or environment.get("TOKENFEED_TLS_CA") or None,
        tls_cert=given.tls_cert or environment.get("TOKENFEED_TLS_CERT") or None,
        tls_key=given.tls_key or environment.get("TOKENFEED_TLS_KEY") or None,
        token=given.token or environment.get(token) or (Path(token_file) if token_file else None),
    )
    complete.require_whole()
    return complete


def _read(name: str, path: str | os.PathLike[str]) -> bytes:
    # open() would take a number as a descriptor of this process, and close it.
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InvalidRequest(name, "is not a path")
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidRequest(name, f"cannot be read: {error.strerror}") from error
    except ValueError:
        raise InvalidRequest(name, "is not a path") from None


def _pem(name: str, path: str | None, kind: bytes) -> bytes | None:
    if path is None:
        return None
    content = _read(name, path)
    # An empty key or certificate would abort the process, and an empty authority would mean all
    # public ones (grpcio 1.62 and 1.85).
    if b"-----BEGIN " not in content or kind not in content:
        raise InvalidRequest(name, f"contains no {kind.decode()} in PEM format")
    return content


def _resolve_token(token: Token) -> str:
    if isinstance(token, os.PathLike):
        words = _read("token", token).split()
        if len(words) != 1:
            problem = f"its file contains {len(words)} words; it has to contain exactly one"
            raise InvalidRequest("token", problem)
        # `metadata` rejects a token that is not ASCII.
        return words[0].decode("latin-1")
    if not callable(token):
        return token
    try:
        return token()
    except Exception as error:  # noqa: BLE001 - user code; its message may be a secret
        problem = f"the token function raised {type(error).__name__}"
    # Outside the except block: a traceback would show that exception.
    raise InvalidRequest("token", problem)
