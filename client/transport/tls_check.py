"""Diagnoses a failed first connection: gRPC's UNAVAILABLE may be a TLS problem.

gRPC's message differs between versions, and is the same as for a server that is away. So Python's
own TLS repeats the handshake and reports the problem.
"""

from __future__ import annotations

import socket
import ssl

from tokenfeed.errors import InvalidRequest, TokenfeedError, Unreachable

from .credentials import Credentials

TLS_CHECK_SECONDS = 2.0
"""Timeout of the whole check. If it is exceeded, the error is that of gRPC."""
_ANSWER_SECONDS = 0.5
"""Timeout for the first byte after the handshake: gRPC sends it at once."""


def tls_problem(
    target: str, address: tuple[str, int], name: str, credentials: Credentials
) -> TokenfeedError | None:
    """Connect to a server and return its TLS problem; None if there is none, or it is unknown.

    target: its address, for the error.  address: its host and port.  name: expected in its
    certificate.
    Returns: InvalidRequest if a retry cannot help; Unreachable with a hint if it may.
    The system's resolver may make it wait without a limit.
    """
    context = _context(credentials)
    if isinstance(context, InvalidRequest):
        return context
    try:
        with socket.create_connection(address, timeout=TLS_CHECK_SECONDS) as connection:
            if credentials.tls_ca is None:
                return _of_plaintext(connection, target, context)
            return _of_tls(connection, target, name, context)
    except (OSError, ValueError):
        # No server, no usable alert (ssl.SSLError), or a name that cannot be used in a handshake.
        return None


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


def _of_plaintext(
    connection: socket.socket, server: str, context: ssl.SSLContext
) -> TokenfeedError | None:
    """Return the problem of a plaintext client with a server that speaks TLS."""
    try:
        context.wrap_socket(connection).close()
    except ssl.SSLError as error:
        if not _is_alert(error):
            raise
    return InvalidRequest(
        "tls_ca",
        f"is missing, but {server} speaks TLS; pass the PEM file of the authority that signed its "
        "certificate, or set TOKENFEED_TLS_CA",
    )


def _of_tls(
    connection: socket.socket, server: str, name: str, context: ssl.SSLContext
) -> TokenfeedError | None:
    """Return the problem of a TLS client with a server."""
    try:
        protected = context.wrap_socket(connection, server_hostname=name)
    except ssl.SSLCertVerificationError as error:
        return InvalidRequest(
            "tls_ca",
            f"does not verify the certificate of {server}: {error.verify_message}; "
            + _CURES.get(error.verify_code, "pass the authority that signed its certificate"),
        )
    except ssl.SSLError as error:
        if _is_alert(error):
            return _refused(server, error)
        if error.reason in _PLAINTEXT:
            return InvalidRequest(
                "tls_ca",
                f"is given, but {server} does not speak TLS; omit it (TOKENFEED_TLS_CA too), or "
                "start the server with --tls-cert and --tls-key",
            )
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
    return Unreachable(
        server, "closes the connection after the TLS handshake; it may require another tls_cert"
    )


def _refused(server: str, error: OSError) -> InvalidRequest:
    return InvalidRequest(
        "tls_cert",
        f"is missing, or {server} does not accept it ({_reason(error)}); pass a tls_cert with its "
        "tls_key, signed by the authority of the server's --tls-client-ca",
    )


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or type(error).__name__)


_CURES = {
    9: "check this machine's clock",
    10: "renew the server's certificate",
    62: "use a target with a name from the certificate",
    64: "use a target with an address from the certificate",
}
"""Cures by OpenSSL's X509_V_ERR codes."""
_PLAINTEXT = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL 1.1 to 3 report an answer that is not TLS by these reasons."""


def _is_alert(error: OSError) -> bool:
    return "_ALERT_" in (getattr(error, "reason", None) or "")
