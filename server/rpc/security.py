"""Who may ask: TLS certificates and bearer tokens, both read anew when their files change.

Nothing here logs or says what a token or a key is, nor where it lies.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import logging
import os
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import grpc

from tokenfeed.errors import InvalidRequest, Unauthenticated

_LOG = logging.getLogger("tokenfeed.server")

_OPEN_TO_ALL = "/grpc.health.v1.Health/"
_SCHEME = "bearer "

Stamp: TypeAlias = tuple[int, int, int, int]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

# What OpenSSL calls a key that is another certificate's, of the same kind or of another.
_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files.  client_ca: of whom clients have to have a certificate; None takes any client."""

    cert: str
    key: str
    client_ca: str | None = None

    def stamps(self) -> tuple[Stamp, ...]:
        """Return what changes when one of them is renewed.  Raises: InvalidRequest."""
        client_ca = [_stamp("--tls-client-ca", self.client_ca)] if self.client_ca else []
        return _stamp("--tls-cert", self.cert), _stamp("--tls-key", self.key), *client_ca


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


class _LogOnce:
    """Says in the log what is wrong with files: once, not every time that somebody looks."""

    def __init__(self, kept: str) -> None:
        self._kept = kept
        self._said = ""

    def error(self, error: InvalidRequest) -> None:
        if str(error) != self._said:
            self._said = str(error)
            _LOG.error("kept the old %s: %s", self._kept, error)

    def reset(self) -> None:
        self._said = ""


class _Certificates:
    """What is read from certificate files, and when it was."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._complaint = _LogOnce("certificate")
        self._stamps = files.stamps()
        self.configuration = self._read(again=False)

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the configuration if its files have changed, else None. For each handshake."""
        with self._lock:
            try:
                stamps = self._files.stamps()
                if stamps == self._stamps:
                    return None
                configuration = self._read(again=True)
            except InvalidRequest as error:
                self._complaint.error(error)
                return None
            self._stamps = stamps
            self._complaint.reset()
            _LOG.info("renewed certificate")
            return configuration

    def _read(self, *, again: bool) -> grpc.ServerCertificateConfiguration:
        files = self._files
        key = _pem("--tls-key", files.key, b"PRIVATE KEY", again=again)
        chain = _pem("--tls-cert", files.cert, b"CERTIFICATE", again=again)
        roots = files.client_ca and _pem(
            "--tls-client-ca", files.client_ca, b"CERTIFICATE", again=again
        )
        _require_usable(chain, key, roots or None)
        return grpc.ssl_server_certificate_configuration([(key, chain)], roots or None)


class BearerTokens:
    """The bearer tokens of a file, one a line, of which any is valid."""

    def __init__(self, path: str) -> None:
        """Read them.  Raises: InvalidRequest if there is none."""
        self._path = path
        self._reload_requested = threading.Event()
        self._complaint = _LogOnce("tokens")
        self._stamp: Stamp | None = _stamp("--token-file", path)
        self._hashes = _hashes(path, again=False)
        # What was a pipe is read once. That it is one is no news.
        self._polled = os.path.isfile(path)

    def valid(self, token: str) -> bool:
        """Say whether a token is one of them, in a time that does not depend on how nearly."""
        asked = _hash(token)
        # All of them, and no short cut.
        return sum([hmac.compare_digest(asked, known) for known in self._hashes]) > 0

    def request_reload(self) -> None:
        """Have the next look read the file, even if it seems to be as it was."""
        self._reload_requested.set()

    def poll(self) -> None:
        """Read the file anew if it has changed; what cannot be read leaves the old ones."""
        if self._reload_requested.is_set():
            self._reload_requested.clear()
            self._polled, self._stamp = True, None
            self._complaint.reset()
        if not self._polled:
            return
        try:
            stamp = _stamp("--token-file", self._path)
            if stamp == self._stamp:
                return
            hashes = _hashes(self._path, again=True)
        except InvalidRequest as error:
            self._complaint.error(error)
            return
        self._stamp, self._hashes = stamp, hashes
        self._complaint.reset()
        _LOG.info("read tokens count=%d", len(hashes))


class TokenInterceptor(grpc.ServerInterceptor):
    """Answers nothing but health to whoever has no valid token."""

    def __init__(self, tokens: BearerTokens) -> None:
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
    error = Unauthenticated("authorization", "a valid bearer token is needed here")
    context.abort(grpc.StatusCode[error.status], str(error))


_REFUSING: Handler = grpc.stream_stream_rpc_method_handler(_refuse)


def _pem(option: str, path: str, kind: bytes, *, again: bool) -> bytes:
    content = _content(option, path, again=again)
    if b"-----BEGIN " not in content or kind not in content:
        raise InvalidRequest(option, f"holds no {kind.decode()} in PEM")
    return content


def _require_usable(chain: bytes, key: bytes, roots: bytes | None) -> None:
    """Raise InvalidRequest unless they can be parsed and the key is that of the certificate. gRPC
    says of neither what is wrong, and of a renewed pair nothing at all.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")  # how long a key should be is not ours to say
    try:
        # It takes files alone. These are in memory, and so are what was read and nothing newer.
        with _in_memory(chain) as cert_path, _in_memory(key) as key_path:
            context.load_cert_chain(cert_path, key_path, password=b"")
    except ssl.SSLError as error:
        if error.reason in _MISMATCHES:
            raise InvalidRequest("--tls-key", "is not the key of --tls-cert") from None
        problem = "or --tls-key cannot be parsed; the key may not be encrypted"
        raise InvalidRequest("--tls-cert", problem) from None
    if roots:
        try:
            context.load_verify_locations(cadata=roots.decode("ascii", "ignore"))
        except ssl.SSLError:
            raise InvalidRequest("--tls-client-ca", "cannot be parsed") from None


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Lend the path of a file that no disk holds."""
    with open(os.memfd_create("tokenfeed"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _hashes(path: str, *, again: bool) -> tuple[bytes, ...]:
    content = _content("--token-file", path, again=again)
    with io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", "surrogateescape") as lines:
        hashes = tuple(_hash(token) for line in lines if (token := line.strip()))
    if not hashes:
        raise InvalidRequest("--token-file", "holds no token; write one a line")
    return hashes


def _content(option: str, path: str, *, again: bool) -> bytes:
    """Return what a file holds.  again: only if it is a regular one.  Raises: InvalidRequest.

    A pipe can be read at the start, as `--token-file <(...)` is. Later it would be waited for.
    """
    nonblocking = os.O_NONBLOCK if again else 0
    try:
        with open(
            path, "rb", opener=lambda path, flags: os.open(path, flags | nonblocking)
        ) as file:
            if again and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidRequest(option, "is no regular file any more")
            return file.read()
    except OSError as error:
        raise InvalidRequest(option, f"cannot be read: {error.strerror}") from error


def _hash(token: str) -> bytes:
    """Return what is compared: of one length for all tokens, and of no use to whoever sees it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _stamp(option: str, path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError as error:
        raise InvalidRequest(option, f"cannot be read: {error.strerror}") from error
    # Of these nobody can put back when its status changed.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size
