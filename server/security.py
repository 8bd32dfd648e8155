"""Who may ask: TLS certificates and bearer tokens, both read anew when their files change.

Nothing here logs or says what a token or a key is, nor where it lies.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import grpc

from tokenfeed.errors import InvalidRequest, NotAllowed

_LOG = logging.getLogger("tokenfeed.server")

_OPEN_TO_ALL = "/grpc.health.v1.Health/"
_SCHEME = "bearer "

Stamps = tuple[tuple[int, int, int], ...]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files.  client_ca: of whom clients have to have a certificate; None takes any client."""

    cert: str
    key: str
    client_ca: str | None = None

    def stamps(self) -> Stamps:
        """Return what changes when one of them is renewed.  Raises: OSError."""
        return tuple(map(_stamp, (self.cert, self.key, *filter(None, [self.client_ca]))))


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return credentials that follow their files: a renewed certificate serves the next handshake.

    Raises: InvalidRequest, naming the option, if a file cannot be read or is none.
    """
    current = _Certificates(files)
    return grpc.dynamic_ssl_server_credentials(
        current.configuration,
        current.renewed,  # type: ignore[arg-type] # None is "as before"
        require_client_authentication=files.client_ca is not None,
    )


class _Certificates:
    """What is read from certificate files, and when it was."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        try:
            self._stamps = files.stamps()
        except OSError as error:
            raise InvalidRequest("--tls-cert", f"cannot be read: {error}") from error
        self.configuration = self._read()

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the configuration if its files have changed, else None. For each handshake."""
        with self._lock:
            try:
                stamps = self._files.stamps()
                if stamps == self._stamps:
                    return None
                configuration = self._read()
            except (OSError, InvalidRequest) as error:
                _LOG.error("kept the old certificate: %s", error)
                return None
            self._stamps = stamps
            _LOG.info("renewed certificate")
            return configuration

    def _read(self) -> grpc.ServerCertificateConfiguration:
        key = _pem("--tls-key", self._files.key, b"PRIVATE KEY")
        chain = _pem("--tls-cert", self._files.cert, b"CERTIFICATE")
        roots = self._files.client_ca and _pem(
            "--tls-client-ca", self._files.client_ca, b"CERTIFICATE"
        )
        return grpc.ssl_server_certificate_configuration([(key, chain)], roots or None)


class Tokens:
    """The bearer tokens of a file, one a line, of which any is valid."""

    def __init__(self, path: str) -> None:
        """Read them.  Raises: InvalidRequest if there is none."""
        self._path = path
        self._doubted = threading.Event()
        try:
            self._stamp = _stamp(path)
            self._hashes = _hashes(path)
        except OSError as error:
            raise InvalidRequest("--token-file", f"cannot be read: {error.strerror}") from error

    def valid(self, token: str) -> bool:
        """Say whether a token is one of them, in a time that does not depend on how nearly."""
        asked = _hash(token)
        # All of them, and no short cut.
        return sum([hmac.compare_digest(asked, known) for known in self._hashes]) > 0

    def read_anew(self) -> None:
        """Have the next look read the file, even if it seems to be as it was."""
        self._doubted.set()

    def look(self) -> None:
        """Read the file anew if it has changed; what cannot be read leaves the old ones."""
        if doubted := self._doubted.is_set():
            self._doubted.clear()
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp and not doubted:
                return
            hashes = _hashes(self._path)
        except (OSError, InvalidRequest) as error:
            _LOG.error("kept the old tokens: %s", getattr(error, "strerror", None) or error)
            return
        self._stamp, self._hashes = stamp, hashes
        _LOG.info("read tokens count=%d", len(hashes))


class TokenInterceptor(grpc.ServerInterceptor):
    """Answers nothing but health to whoever has no valid token."""

    def __init__(self, tokens: Tokens) -> None:
        """Ask tokens about each call."""
        self._tokens = tokens

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the handler of a call, or one that refuses it."""
        if handler_call_details.method.startswith(_OPEN_TO_ALL):
            return continuation(handler_call_details)
        for key, value in handler_call_details.invocation_metadata or ():
            if (
                key == "authorization"
                and isinstance(value, str)
                and value[: len(_SCHEME)].lower() == _SCHEME
                and self._tokens.valid(value[len(_SCHEME) :])
            ):
                return continuation(handler_call_details)
        return _REFUSING


def _refuse(_: object, context: grpc.ServicerContext) -> NoReturn:
    error = NotAllowed("authorization", "a valid bearer token is needed here")
    context.abort(grpc.StatusCode[error.status], str(error))


_REFUSING: Handler = grpc.stream_stream_rpc_method_handler(_refuse)


def _pem(option: str, path: str, kind: bytes) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise InvalidRequest(option, f"cannot be read: {error.strerror}") from error
    if b"-----BEGIN " not in content or kind not in content:
        raise InvalidRequest(option, f"holds no {kind.decode()} in PEM")
    return content


def _hashes(path: str) -> tuple[bytes, ...]:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        tokens = [line.strip() for line in file]
    hashes = tuple(_hash(token) for token in tokens if token)
    if not hashes:
        raise InvalidRequest("--token-file", "holds no token; write one a line")
    return hashes


def _hash(token: str) -> bytes:
    """Return what is compared: of one length for all tokens, and of no use to whoever sees it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _stamp(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_ino, status.st_size
