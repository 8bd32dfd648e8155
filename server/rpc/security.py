"""Access control: TLS certificates and bearer tokens, both reloaded when their files change.

No log line and no error contains a token, a key, or the path of either.
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NoReturn, TypeAlias

import grpc

from tokenfeed.errors import InvalidRequest, Unauthenticated

from .admission import Handler
from .error_status import CallCounts

_LOG = logging.getLogger("tokenfeed.server")

_NEED_NO_TOKEN = ("/grpc.health.v1.Health/", "/tokenfeed.v1.Status/")
"""The second has tokens of its own."""
_SCHEME = "bearer "

Stamp: TypeAlias = tuple[int, int, int, int]

# OpenSSL's reasons for a key that belongs to another certificate, of the same type or another.
_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")


def server_credentials(cert: str, key: str, client_ca: str | None) -> grpc.ServerCredentials:
    """Return credentials that follow their files: a renewed certificate applies from the next
    handshake on.

    cert, key: paths of PEM files.  client_ca: that of the authority of clients' certificates; None
    accepts any client.
    Raises: InvalidRequest, naming the option, if a file cannot be read or is wrong.
    """
    current = _Certificates(cert, key, client_ca)
    return grpc.dynamic_ssl_server_credentials(
        current.configuration,
        current.renewed,  # type: ignore[arg-type] # None means unchanged
        require_client_authentication=client_ca is not None,
    )


class _LogOnce:
    """Logs a failed reload once, not at every poll.  message: with one %s, for the error."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._logged = ""

    def error(self, error: InvalidRequest) -> None:
        if str(error) != self._logged:
            self._logged = str(error)
            _LOG.error(self._message, error)

    def reset(self) -> None:
        self._logged = ""


class _Certificates:
    """The configuration read from certificate files, and the stamps of these files."""

    def __init__(self, cert: str, key: str, client_ca: str | None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._lock = threading.Lock()
        self._failure = _LogOnce("certificate reload failed, using the previous one: %s")
        self._stamps = self._stamps_now()
        self.configuration = self._read(again=False)

    def _stamps_now(self) -> tuple[Stamp, ...]:
        """Return values that change when a file is renewed.  Raises: InvalidRequest."""
        client_ca = [_stamp("--tls-client-ca", self._client_ca)] if self._client_ca else []
        return _stamp("--tls-cert", self._cert), _stamp("--tls-key", self._key), *client_ca

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the configuration if its files have changed, else None. Called per handshake."""
        with self._lock:
            try:
                stamps = self._stamps_now()
                if stamps == self._stamps:
                    return None
                configuration = self._read(again=True)
            except InvalidRequest as error:
                self._failure.error(error)
                return None
            self._stamps = stamps
            self._failure.reset()
            _LOG.info("certificate reloaded")
            return configuration

    def _read(self, *, again: bool) -> grpc.ServerCertificateConfiguration:
        key = _pem("--tls-key", self._key, b"PRIVATE KEY", again=again)
        chain = _pem("--tls-cert", self._cert, b"CERTIFICATE", again=again)
        roots = self._client_ca and _pem(
            "--tls-client-ca", self._client_ca, b"CERTIFICATE", again=again
        )
        _require_usable(chain, key, roots or None)
        return grpc.ssl_server_certificate_configuration([(key, chain)], roots or None)


class BearerTokens:
    """The bearer tokens of a file, one per line. Any of them is valid."""

    def __init__(self, path: str, option: str = "--token-file") -> None:
        """Read them.  option: that has the path.  Raises: InvalidRequest if there is none."""
        self._path = path
        self._option = option
        self._reload_requested = threading.Event()
        self._failure = _LogOnce("bearer token reload failed, using the previous ones: %s")
        self._stamp: Stamp | None = _stamp(option, path)
        self._hashes = _hashes(option, path, again=False)
        # A pipe is read once and never polled, without an error in the log.
        self._polled = os.path.isfile(path)

    def valid(self, token: str) -> bool:
        """Return whether a token is one of them. The time it takes does not reveal a near match."""
        digest = _hash(token)
        # Compare with all of them: an early exit would show in the time.
        return sum([hmac.compare_digest(digest, known) for known in self._hashes]) > 0

    def request_reload(self) -> None:
        """Make the next poll reload the file, even if it seems unchanged."""
        self._reload_requested.set()

    def poll(self) -> None:
        """Reload the file if it has changed. If it cannot be read, the previous tokens stay."""
        if self._reload_requested.is_set():
            self._reload_requested.clear()
            self._polled, self._stamp = True, None
            self._failure.reset()
        if not self._polled:
            return
        try:
            stamp = _stamp(self._option, self._path)
            if stamp == self._stamp:
                return
            hashes = _hashes(self._option, self._path, again=True)
        except InvalidRequest as error:
            self._failure.error(error)
            return
        self._stamp, self._hashes = stamp, hashes
        self._failure.reset()
        _LOG.info("bearer tokens reloaded count=%d", len(hashes))


class TokenInterceptor(grpc.ServerInterceptor):
    """Refuses all calls without a valid token, except those of services that are open to all, or
    have tokens of their own.
    """

    def __init__(self, tokens: BearerTokens, counts: CallCounts) -> None:
        """Check each call against these tokens.  counts: where refused calls are counted."""
        self._tokens = tokens
        self._refusing: Handler = grpc.stream_stream_rpc_method_handler(partial(_refuse, counts))

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the handler of a call, or a handler that refuses it."""
        if handler_call_details.method.startswith(_NEED_NO_TOKEN):
            return continuation(handler_call_details)
        if has_token(handler_call_details.invocation_metadata, self._tokens):
            return continuation(handler_call_details)
        return self._refusing


def has_token(metadata: Iterable[tuple[str, str | bytes]] | None, tokens: BearerTokens) -> bool:
    """Return whether the metadata of a call has one of these tokens."""
    return any(
        key == "authorization"
        and isinstance(value, str)
        and value[: len(_SCHEME)].lower() == _SCHEME
        and tokens.valid(value[len(_SCHEME) :])
        for key, value in metadata or ()
    )


def _refuse(counts: CallCounts, _: object, context: grpc.ServicerContext) -> NoReturn:
    error = Unauthenticated("authorization", "this server requires a valid bearer token")
    counts.refused(error)
    context.abort(grpc.StatusCode[error.status], str(error))


def _pem(option: str, path: str, kind: bytes, *, again: bool) -> bytes:
    content = _content(option, path, again=again)
    if b"-----BEGIN " not in content or kind not in content:
        raise InvalidRequest(option, f"contains no {kind.decode()} in PEM format")
    return content


def _require_usable(chain: bytes, key: bytes, roots: bytes | None) -> None:
    """Raise InvalidRequest unless they can be parsed and the key belongs to the certificate. gRPC
    does not report what is wrong, and reports nothing at all for a renewed pair.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")  # any key length is accepted here
    try:
        # OpenSSL reads only files. Files in memory hold exactly what was read, and nothing newer.
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
    """Yield the path of a file in memory, valid within the with block."""
    with open(os.memfd_create("tokenfeed"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _hashes(option: str, path: str, *, again: bool) -> tuple[bytes, ...]:
    content = _content(option, path, again=again)
    with io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", "surrogateescape") as lines:
        hashes = tuple(_hash(token) for line in lines if (token := line.strip()))
    if not hashes:
        raise InvalidRequest(option, "contains no token; write one per line")
    return hashes


def _content(option: str, path: str, *, again: bool) -> bytes:
    """Return the content of a file.  again: only if it is a regular file.  Raises: InvalidRequest.

    At the start a pipe can be read, such as `--token-file <(...)`. Later, reading it could block.
    """
    nonblocking = os.O_NONBLOCK if again else 0
    try:
        with open(
            path, "rb", opener=lambda path, flags: os.open(path, flags | nonblocking)
        ) as file:
            if again and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidRequest(option, "is not a regular file any more")
            return file.read()
    except OSError as error:
        raise InvalidRequest(option, f"cannot be read: {error.strerror}") from error


def _hash(token: str) -> bytes:
    """Return the hash of a token: the same length for all tokens, and useless to an attacker."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _stamp(option: str, path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError as error:
        raise InvalidRequest(option, f"cannot be read: {error.strerror}") from error
    # The time of the last status change (ctime) cannot be set back.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size
