"""Plaintext or TLS, the handshake, and what the server's certificate says."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from typing import Any

from tokenfeed.client.transport.addresses import host_and_port
from tokenfeed.client.transport.credentials import Credentials
from tokenfeed.client.transport.tls_check import TlsProblem, tls_problem

from .findings import Diagnosis, Finding
from .network import Place, Server, greeting, opened, silent

_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the module ssl has no name for."""
_PARTIAL_CHAIN = 0x80000
"""X509_V_FLAG_PARTIAL_CHAIN: any certificate may be trusted, not only that of an authority."""
_NAMES_SHOWN = 8

_SET_CA = "set TOKENFEED_TLS_CA, or pass tls_ca"
_TEXTS = {
    "server-speaks-plaintext": (
        "this client speaks TLS (tls_ca is set), but the server speaks plaintext",
        "unset TOKENFEED_TLS_CA, or start the server with --tls-cert and --tls-key",
    ),
    "certificate-name": (
        "the certificate of the server is for other names than the address",
        "use an address with a name of the certificate, or issue one for this name",
    ),
    "certificate-expired": (
        "the certificate of the server has expired",
        "renew it: the server reads the new files at the next handshake; or correct this machine's "
        "clock",
    ),
    "certificate-not-yet-valid": (
        "the certificate of the server is not valid yet",
        "correct this machine's clock, or wait until the certificate is valid",
    ),
    "certificate-not-trusted": (
        "the certificate of the server is not signed by an authority of tls_ca",
        f"{_SET_CA}, to the authority that issued it",
    ),
    "client-certificate-refused": (
        "the server does not accept this client's certificate, or wants one and gets none",
        "set TOKENFEED_TLS_CERT and TOKENFEED_TLS_KEY to a certificate that is valid now and "
        "signed by the authority of the server's --tls-client-ca",
    ),
    "files-unusable": (
        "the TLS files of this machine cannot be used",
        "correct TOKENFEED_TLS_CA, TOKENFEED_TLS_CERT and TOKENFEED_TLS_KEY",
    ),
}
"""Problem and cure of each kind of TlsProblem but "server-speaks-tls"."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says. names: of the server.  issuer: its common name, or all of it.
    begins, ends: when it is valid, in seconds since 1970.
    """

    names: tuple[str, ...]
    issuer: str
    begins: float
    ends: float

    def __str__(self) -> str:
        """Return one line."""
        names = ", ".join(self.names[:_NAMES_SHOWN]) or "no name"
        more = f" and {left} more" if (left := len(self.names) - _NAMES_SHOWN) > 0 else ""
        valid = f"valid {_day(self.begins)} to {_day(self.ends)}"
        return f"certificate for {names}{more}, {valid}, issued by {self.issuer}"


def check_plaintext(server: Server, place: Place, timeout_seconds: float) -> None:
    """Raise Diagnosis unless a server speaks HTTP/2 in plaintext."""
    answer = greeting(place, timeout_seconds)
    if answer == "http2":
        return
    if answer == "silent":
        raise Diagnosis(silent(server, timeout_seconds))
    if not isinstance(place, str) and answer in ("tls", "closed", "unknown"):
        certificate = read_certificate(place, server.host, timeout_seconds)
        if answer == "tls" or certificate is not None:
            raise Diagnosis(_speaks_tls(server, certificate))
    seen = {
        "http1": "it answers in HTTP/1",
        "closed": "it closes the connection at the first bytes of HTTP/2",
    }
    raise Diagnosis(
        Finding(
            "not-grpc",
            server.name,
            "what listens there is no gRPC server",
            seen.get(answer, "its answer is not HTTP/2"),
            "check address and port; a proxy in between has to pass HTTP/2 through",
        )
    )


def check_tls(
    server: Server, place: tuple[str, int], credentials: Credentials, timeout_seconds: float
) -> Certificate | None:
    """Return the certificate of a server that is accepted and accepts this client's; None if it
    cannot be read.  Raises: Diagnosis.
    """
    name = server.authority or host_and_port(server.target)[0]
    try:
        problem = tls_problem(server.name, place, name, credentials, timeout_seconds)
    except TimeoutError:
        raise Diagnosis(silent(server, timeout_seconds)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        finding = Finding(
            "tls-fails",
            server.name,
            "the TLS handshake fails",
            f"{type(error).__name__}: {reason}",
            "check that address and port are those of a tokenfeed server, without a proxy that "
            "ends TLS in between",
        )
        raise Diagnosis(finding) from None
    certificate = read_certificate(place, name, timeout_seconds)
    if problem is None:
        return certificate
    raise Diagnosis(_finding(server, name, problem, certificate))


def read_certificate(
    place: tuple[str, int], name: str, timeout_seconds: float
) -> Certificate | None:
    """Return the certificate of a server, whether it is valid or not; None if there is no TLS.

    Python decodes only certificates that it has verified. So a second handshake trusts exactly the
    certificate that the first one brought. Nothing is sent on either connection.
    """
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname = False
    blind.verify_mode = ssl.CERT_NONE
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags = ssl.VerifyFlags(_NO_CHECK_TIME | _PARTIAL_CHAIN)
    try:
        with _handshake(blind, place, name, timeout_seconds) as protected:
            encoded = protected.getpeercert(binary_form=True)
        trusting.load_verify_locations(cadata=encoded or b"")
        with _handshake(trusting, place, name, timeout_seconds) as protected:
            return _decoded(protected.getpeercert() or {})
    except (OSError, ValueError, KeyError):
        # No TLS, a client certificate that is wanted, or a certificate that OpenSSL does not take.
        return None


def _handshake(
    context: ssl.SSLContext, place: tuple[str, int], name: str, timeout_seconds: float
) -> ssl.SSLSocket:
    context.set_alpn_protocols(["h2"])
    with opened(place, timeout_seconds) as connection:
        # It takes the socket over, or the socket is closed here.
        return context.wrap_socket(connection, server_hostname=name)


def _decoded(found: dict[str, Any]) -> Certificate:
    issuer = [pair for part in found["issuer"] for pair in part]
    common = [value for key, value in issuer if key == "commonName"]
    return Certificate(
        tuple(value for _, value in found.get("subjectAltName", ())),
        common[0] if common else ", ".join(value for _, value in issuer),
        ssl.cert_time_to_seconds(found["notBefore"]),
        ssl.cert_time_to_seconds(found["notAfter"]),
    )


def _speaks_tls(server: Server, certificate: Certificate | None) -> Finding:
    return Finding(
        "server-speaks-tls",
        server.name,
        "the server speaks TLS, but this client speaks plaintext (tls_ca is not set)",
        f"a TLS handshake succeeds: {certificate}" if certificate else "it answers by a TLS alert",
        f"{_SET_CA}: the PEM file of the authority that signed the server's certificate",
    )


def _finding(
    server: Server, name: str, problem: TlsProblem, certificate: Certificate | None
) -> Finding:
    text, cure = _TEXTS[problem.kind]
    evidence = {
        "server-speaks-plaintext": "the answer to a TLS handshake is not TLS",
        "files-unusable": str(problem.error),
        "client-certificate-refused": str(problem.error).partition(";")[0],
    }.get(problem.kind, f"it is a {certificate}" if certificate else problem.error.problem)
    if problem.kind == "certificate-name":
        evidence += f"; the address is {name}"
    if problem.kind in ("certificate-expired", "certificate-not-yet-valid"):
        evidence += f"; this machine's clock says {_day(time.time())}"
    return Finding(problem.kind, server.name, text, evidence, cure)


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds)) + " UTC"
