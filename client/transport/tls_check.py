"""Why a first connection was never made: what gRPC calls UNAVAILABLE may be a matter of TLS.

Its words for that differ from version to version, and are those of a server that is away. So the
handshake is made once more, by Python's own TLS, which says what was wrong.
"""

from __future__ import annotations

import socket
import ssl

from tokenfeed.errors import InvalidRequest, TokenfeedError, Unreachable

from .credentials import Credentials

TLS_CHECK_SECONDS = 2.0
"""For all of it; where it takes longer nobody knows more than gRPC has said."""
_ANSWER_SECONDS = 0.5
"""How long a server has to say something once the handshake is done: gRPC does so at once."""


def tls_problem(
    target: str, place: tuple[str, int], name: str, credentials: Credentials
) -> TokenfeedError | None:
    """Connect to a server, and return what is wrong with TLS; None if nothing is, or nobody says.

    target: its address, for the error.  place: its host and port.  name: that its certificate has
    to have.
    Returns: InvalidRequest for what waiting does not heal; Unreachable with a hint for what it may.
    Waits without a limit of its own, as for the system's resolver.
    """
    context = _context(credentials)
    if isinstance(context, InvalidRequest):
        return context
    try:
        with socket.create_connection(place, timeout=TLS_CHECK_SECONDS) as connection:
            if credentials.tls_ca is None:
                return _of_plaintext(connection, target, context)
            return _of_tls(connection, target, name, context)
    except (OSError, ValueError):
        # Nobody there, or nobody who says more (ssl.SSLError); or no name that can be asked for.
        return None


def _context(credentials: Credentials) -> ssl.SSLContext | InvalidRequest:
    """Return what a connection is protected by, or which file of one's own is of no use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if credentials.tls_ca is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # nothing is sent: only whether it answers counts
        return context
    try:
        context.load_verify_locations(credentials.tls_ca)
    except OSError as error:
        return InvalidRequest("tls_ca", f"holds no certificate that can be read ({_reason(error)})")
    if credentials.tls_cert is not None:
        try:
            # One that is encrypted would be asked for at the terminal.
            context.load_cert_chain(credentials.tls_cert, credentials.tls_key, password=lambda: "")
        except OSError as error:
            return InvalidRequest(
                "tls_key",
                f"is not the key of tls_cert, or cannot be read ({_reason(error)}); both have to "
                "be PEM, and the key without a passphrase",
            )
    return context


def _of_plaintext(
    connection: socket.socket, server: str, context: ssl.SSLContext
) -> TokenfeedError | None:
    """Return the problem of a server that speaks TLS with a client that does not."""
    try:
        context.wrap_socket(connection).close()
    except ssl.SSLError as error:
        if not _is_alert(error):
            raise
    return InvalidRequest(
        "tls_ca",
        f"is missing, and {server} speaks TLS; pass the PEM file of the authority that has signed "
        "its certificate, or set TOKENFEED_TLS_CA",
    )


def _of_tls(
    connection: socket.socket, server: str, name: str, context: ssl.SSLContext
) -> TokenfeedError | None:
    """Return the problem of a server with a client that speaks TLS."""
    try:
        protected = context.wrap_socket(connection, server_hostname=name)
    except ssl.SSLCertVerificationError as error:
        return InvalidRequest(
            "tls_ca",
            f"does not make {server} trusted: {error.verify_message}; "
            + _CURES.get(error.verify_code, "pass the authority that has signed its certificate"),
        )
    except ssl.SSLError as error:
        if _is_alert(error):
            return _refused(server, error)
        if error.reason in _PLAINTEXT:
            return InvalidRequest(
                "tls_ca",
                f"is given, and {server} does not speak TLS; leave it out (TOKENFEED_TLS_CA too), "
                "or start the server with --tls-cert and --tls-key",
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
    # So gRPC refuses a certificate under TLS 1.3; and so does a proxy that has no server behind it.
    return Unreachable(
        server, "hangs up after the TLS handshake; does it ask for a tls_cert, or for another one?"
    )


def _refused(server: str, error: OSError) -> InvalidRequest:
    return InvalidRequest(
        "tls_cert",
        f"is missing, or not one that {server} takes ({_reason(error)}); pass a tls_cert and its "
        "tls_key that the authority of its --tls-client-ca has signed",
    )


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or type(error).__name__)


_CURES = {
    9: "it becomes valid later, by this machine's clock",
    10: "its operator has to renew it",
    62: "ask for a name that it was made out to",
    64: "ask for an address that it was made out to",
}
"""By OpenSSL's X509_V_ERR codes."""
_PLAINTEXT = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""What OpenSSL 1.1 to 3 say of an answer that is not TLS."""


def _is_alert(error: OSError) -> bool:
    return "_ALERT_" in (getattr(error, "reason", None) or "")
