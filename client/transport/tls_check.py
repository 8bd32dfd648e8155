"""Diagnoses a failed first connection: gRPC's UNAVAILABLE may be a TLS problem.

gRPC's message differs between versions, and is the same as for a server that is away. So Python's
own TLS repeats the handshake and reports the problem.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass

from tokenfeed.errors import InvalidRequest, TokenfeedError, Unreachable

from .credentials import Credentials

TLS_CHECK_SECONDS = 2.0
"""Timeout of the whole check. If it is exceeded, the error is that of gRPC."""
_ANSWER_SECONDS = 0.5
"""Timeout for the first byte after the handshake: gRPC sends it at once."""


@dataclass(frozen=True, slots=True)
class TlsProblem:
    """Why a connection fails.

    kind: one of a few words for it, for programs: "files-unusable", "server-speaks-tls",
    "server-speaks-plaintext", "certificate-name", "certificate-expired",
    "certificate-not-yet-valid", "certificate-not-trusted", "client-certificate-refused".
    error: what a feed raises: InvalidRequest if a retry cannot help; Unreachable if it may.
    """

    kind: str
    error: TokenfeedError


def tls_problem(
    target: str,
    address: tuple[str, int],
    name: str,
    credentials: Credentials,
    timeout_seconds: float,
) -> TlsProblem | None:
    """Connect to a server and return its TLS problem; None if there is none.

    target: its address, for the error.  address: its host and port.  name: expected in its
    certificate.  timeout_seconds: of each step.
    The system's resolver may make it wait without a limit.
    Raises: OSError if there is no connection, or no usable alert (ssl.SSLError); ValueError for a
    name that cannot be used in a handshake.
    """
    context = _context(credentials)
    if isinstance(context, InvalidRequest):
        return TlsProblem("files-unusable", context)
    with socket.create_connection(address, timeout=timeout_seconds) as connection:
        if credentials.tls_ca is None:
            return _of_plaintext(connection, target, context)
        return _of_tls(connection, target, name, context)


def _context(credentials: Credentials) -> ssl.SSLContext | InvalidRequest:
    """Return the TLS context of a connection, or an error for an unusable file of the client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if credentials.tls_ca is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # nothing is sent: only the kind of answer counts
        return context
    try:
        context.load_verify_locations(credentials.tls_ca)
    except OSError as error:
        return InvalidRequest("tls_ca", f"contains no readable certificate ({_reason(error)})")
    if credentials.tls_cert is not None:
        try:
            # Without a callback, an encrypted key would prompt at the terminal.
            context.load_cert_chain(credentials.tls_cert, credentials.tls_key, password=lambda: "")
        except OSError as error:
            return InvalidRequest(
                "tls_key",
                f"is not the key of tls_cert, or cannot be read ({_reason(error)}); pass two PEM "
                "files, and a key without a passphrase",
            )
    return context


def _of_plaintext(connection: socket.socket, server: str, context: ssl.SSLContext) -> TlsProblem:
    """Return the problem of a plaintext client with a server that speaks TLS."""
    try:
        context.wrap_socket(connection).close()
    except ssl.SSLError as error:
        if not _is_alert(error):
            raise
    problem = (
        f"is missing, but {server} speaks TLS; pass the PEM file of the authority that signed its "
        "certificate, or set TOKENFEED_TLS_CA"
    )
    return TlsProblem("server-speaks-tls", InvalidRequest("tls_ca", problem))


def _of_tls(
    connection: socket.socket, server: str, name: str, context: ssl.SSLContext
) -> TlsProblem | None:
    """Return the problem of a TLS client with a server."""
    try:
        protected = context.wrap_socket(connection, server_hostname=name)
    except ssl.SSLCertVerificationError as error:
        kind, cure = _CERTIFICATES.get(error.verify_code, _NOT_TRUSTED)
        problem = f"does not verify the certificate of {server}: {error.verify_message}; {cure}"
        return TlsProblem(kind, InvalidRequest("tls_ca", problem))
    except ssl.SSLError as error:
        if _is_alert(error):
            return _refused(server, error)
        if error.reason in _PLAINTEXT:
            problem = (
                f"is given, but {server} does not speak TLS; omit it (TOKENFEED_TLS_CA too), or "
                "start the server with --tls-cert and --tls-key"
            )
            return TlsProblem("server-speaks-plaintext", InvalidRequest("tls_ca", problem))
        raise
    with protected:
        protected.settimeout(_ANSWER_SECONDS)
        try:
            if protected.recv(1):
                return None
        except TimeoutError:
            return None
        except OSError as error:
            if _is_alert(error):
                return _refused(server, error)
    # gRPC refuses a certificate like this under TLS 1.3; so does a proxy without a server.
    problem = "closes the connection after the TLS handshake; it may require another tls_cert"
    return TlsProblem(_REFUSED, Unreachable(server, problem))


def _refused(server: str, error: OSError) -> TlsProblem:
    problem = (
        f"is missing, or {server} does not accept it ({_reason(error)}); pass a tls_cert with its "
        "tls_key, signed by the authority of the server's --tls-client-ca"
    )
    return TlsProblem(_REFUSED, InvalidRequest("tls_cert", problem))


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or type(error).__name__)


_REFUSED = "client-certificate-refused"
_NOT_TRUSTED = ("certificate-not-trusted", "pass the authority that signed its certificate")
_OTHER_NAME = "certificate-name"
_CERTIFICATES = {
    9: ("certificate-not-yet-valid", "check this machine's clock"),
    10: ("certificate-expired", "renew the server's certificate"),
    62: (_OTHER_NAME, "use a target with a name from the certificate"),
    64: (_OTHER_NAME, "use a target with an address from the certificate"),
}
"""Kinds of problems and their cures, by OpenSSL's X509_V_ERR codes."""
_PLAINTEXT = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL 1.1 to 3 report an answer that is not TLS by these reasons."""


def _is_alert(error: OSError) -> bool:
    return "_ALERT_" in (getattr(error, "reason", None) or "")
