"""A throwaway certificate authority, made when the first one asks: nothing is trusted beyond this emulator.

The server certificate is good for localhost, *.localhost, 127.0.0.1 and ::1, so that the endpoint of a connection
string passes the host check of every client that is given `ca.pem`, and for whatever other names it is asked to. In a
durable directory both are kept until they near expiry or lack a name.

Written with `cryptography`, which the Azure clients bring anyway, and not with trustme (1.2): that would save some 70
lines here for two more packages in every installation, and not do the rest. It does not tell whether certificates on
disk still last and have all names, writes keys with the umask's permissions, and its authorities last until the year
3000, which is too long for one that a developer may have put into a trust store.

The authority's own key is never written: a certificate that somebody trusts for a year cannot sign another one.
"""

import hashlib
import json
import ssl
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sbpair.files import claim, make_private_folder, open_private, write_private

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_LIFETIME: Final = timedelta(days=365)
_LOOK_AGAIN_SECONDS: Final = 0.01
_RENEW_BEFORE: Final = timedelta(days=7)
_NAMES: Final = ("localhost", "*.localhost")
_ADDRESSES: Final = ("127.0.0.1", "::1")
_NOTE: Final = "checked.json"


class CertificateFiles:
    """A certificate chain and its key that somebody else has made."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = certificate, key
        self._context: ssl.SSLContext | None = None

    def server_context(self) -> ssl.SSLContext:
        """What the server side of a TLS connection needs. Raises OSError where the files are not that."""
        if self._context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(*self._files)
            self._context = context
        return self._context


class TlsFiles:
    """The authority's certificate and the server's certificate with its key, as files in one directory."""

    def __init__(self, directory: Path, *extra_hosts: str) -> None:
        self._directory = directory
        self._extra_hosts = [host for host in extra_hosts if host not in (*_NAMES, *_ADDRESSES)]
        self._lock = threading.Lock()
        self._ready = False
        self._context: ssl.SSLContext | None = None

    @property
    def ca_path(self) -> Path:
        """The authority's certificate (PEM) that clients are to trust; made on first use. Safe from any thread."""
        with self._lock:
            self._make()
        return self._directory / "ca.pem"

    def server_context(self) -> ssl.SSLContext:
        """What the server side of a TLS connection needs. Safe from any thread."""
        with self._lock:
            self._make()
            if self._context is None:
                self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                self._context.minimum_version = ssl.TLSVersion.TLSv1_2
                self._context.load_cert_chain(self._directory / "server.pem", self._directory / "server.key")
            return self._context

    def _make(self) -> None:
        if self._ready:
            return
        make_private_folder(self._directory)
        # Of processes that start at once one makes the files, and the others take them.
        with open_private(self._directory / "lock", "ab") as lock:
            while not claim(lock):
                time.sleep(_LOOK_AGAIN_SECONDS)
            if not self._still_good():
                _write_files(self._directory, self._extra_hosts)
        self._ready = True

    def _still_good(self) -> bool:
        files = [self._directory / name for name in ("ca.pem", "server.pem", "server.key")]
        if not all(file.exists() for file in files):
            return False
        pem = files[1].read_bytes()
        if self._noted(pem):
            return True
        from cryptography import x509

        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        until = certificate.not_valid_after_utc - _RENEW_BEFORE
        good = until > datetime.now(UTC) and all(name in names for name in _alternatives(self._extra_hosts))
        if good:
            self._note(pem, until)
        return good

    def _noted(self, pem: bytes) -> bool:
        """Whether an earlier start has found this very certificate good for these names until after today. To look
        into the certificate itself takes a library that is a tenth of a start."""
        try:
            noted = json.loads((self._directory / _NOTE).read_bytes())
            same = noted["certificate"] == _digest(pem) and noted["hosts"] == sorted(self._extra_hosts)
            return same and datetime.fromisoformat(noted["until"]) > datetime.now(UTC)
        except (OSError, ValueError, TypeError, KeyError):
            return False

    def _note(self, pem: bytes, until: datetime) -> None:
        noted = {"certificate": _digest(pem), "hosts": sorted(self._extra_hosts), "until": until.isoformat()}
        write_private(self._directory / _NOTE, json.dumps(noted).encode())


def _digest(pem: bytes) -> str:
    return hashlib.sha256(pem).hexdigest()


def _write_files(directory: Path, extra_hosts: Sequence[str]) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    ca_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = _authority(ca_key)
    server = _server(server_key, ca, ca_key, extra_hosts)
    write_private(directory / "ca.pem", ca.public_bytes(Encoding.PEM))
    write_private(directory / "server.pem", server.public_bytes(Encoding.PEM))
    key = server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(directory / "server.key", key)


def _authority(key: "EllipticCurvePrivateKey") -> "x509.Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    name = _name("sbpair emulator authority")
    usage = _key_usage(certificates=True)
    return (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _server(
    key: "EllipticCurvePrivateKey",
    ca: "x509.Certificate",
    ca_key: "EllipticCurvePrivateKey",
    extra_hosts: Sequence[str],
) -> "x509.Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    return (
        _builder(_name("localhost"), ca.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternatives(extra_hosts)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _builder(subject: "x509.Name", issuer: "x509.Name", key: "EllipticCurvePrivateKey") -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
    )


def _name(common_name: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, certificates: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificates,
        crl_sign=certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(extra_hosts: Sequence[str]) -> "list[x509.GeneralName]":
    from cryptography import x509

    names: list[x509.GeneralName] = [x509.DNSName(name) for name in _NAMES]
    names += [x509.IPAddress(ip_address(address)) for address in _ADDRESSES]
    for host in extra_hosts:
        try:
            names.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names
