"""Why a first connection was never made: what gRPC calls UNAVAILABLE may be a matter of TLS.

Its words for that differ from version to version, and are those of a server that is away. So the
handshake is made once more, by Python's own TLS, which says what was wrong.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from tokenfeed.errors import InvalidRequest

if TYPE_CHECKING:
    from .channel import Security

_STEP_SECONDS = 2.0
"""For the connection, and for each message of the handshake."""
_REFUSAL_SECONDS = 0.5
"""How long a server has to say something once the handshake is done: gRPC does so at once."""


def tls_problem(
    target: str, place: tuple[str, int], name: str, security: Security
) -> InvalidRequest | None:
    """Connect to a server, and return what is wrong with TLS; None if nothing is, or nobody says.
    Takes a few seconds at most, where packets are lost.

    target: its address, for the error.  place: its host and port.  name: that its certificate has
    to have.
    """
    try:
        with socket.create_connection(place, timeout=_STEP_SECONDS) as connection:
            if security.tls_ca is None:
                return _of_plaintext(connection, target)
            return _of_tls(connection, target, name, security)
    except OSError:  # ssl.SSLError too: nobody there, or nobody who says more
        return None


def _of_plaintext(connection: socket.socket, server: str) -> InvalidRequest | None:
    """Return the problem of a server that speaks TLS with a client that does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent: only whether it answers counts
    context.set_alpn_protocols(["h2"])
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
    connection: socket.socket, server: str, name: str, security: Security
) -> InvalidRequest | None:
    """Return the problem of a server with a client that speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(security.tls_ca)
    if security.tls_cert is not None:
        # A key that is encrypted would be asked for at the terminal.
        context.load_cert_chain(security.tls_cert, security.tls_key, password=lambda: "")
    context.set_alpn_protocols(["h2"])
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
            return _refused(server, str(error.reason))
        if error.reason in _PLAINTEXT:
            return InvalidRequest(
                "tls_ca",
                f"is given, and {server} does not speak TLS; leave it out (TOKENFEED_TLS_CA too), "
                "or start the server with --tls-cert and --tls-key",
            )
        raise
    with protected:
        protected.settimeout(_REFUSAL_SECONDS)
        try:
            answered = protected.recv(1)
        except TimeoutError:
            return None
        except OSError as error:
            return _refused(server, str(getattr(error, "reason", error)))
        # Under TLS 1.3 a certificate is refused after the handshake: gRPC hangs up.
        return None if answered else _refused(server, "it hung up")


def _refused(server: str, reason: str) -> InvalidRequest:
    return InvalidRequest(
        "tls_cert",
        f"is missing, or not one that {server} takes ({reason}); pass a tls_cert and its tls_key "
        "that the authority of its --tls-client-ca has signed",
    )


_CURES = {
    9: "it becomes valid later, by this machine's clock",
    10: "its operator has to renew it",
    62: "ask for a name that it was made out to",
    64: "ask for an address that it was made out to",
}
"""By OpenSSL's X509_V_ERR codes."""
_PLAINTEXT = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""What OpenSSL 1.1 to 3 say of an answer that is not TLS."""


def _is_alert(error: ssl.SSLError) -> bool:
    return "_ALERT_" in (error.reason or "")
