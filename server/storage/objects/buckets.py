"""One bucket: GETs of ranges of pinned objects, lists of names, and how they fail.

The only module that knows obstore. It is imported when a path of objects is used first, and holds
no GIL while a request is on its way. In a fork of a process that has used it, it would hang for
ever, so this refuses.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from mmap import mmap
from typing import Any, NamedTuple, TypeVar, cast

from tokenfeed.commands.extras import missing
from tokenfeed.errors import InvalidCorpus

from ...runtime.once_a_machine import SETTLED_SECONDS
from . import credentials
from .counts import INDEX, REQUESTS
from .urls import Url

Answer = TypeVar("Answer")

_ANSWER_SECONDS = 20.0
"""A request without an answer after this long has failed: what hangs is away."""
_CONNECT_SECONDS = 5.0
_RETRIES = 2
RETRY_SECONDS = 5.0
"""Retries of obstore, with pauses of 0.1 s and more, at random. Its own default, 10 in 3 minutes,
would hide a store that is away from clients, which can go to another server. Within these seconds
object_bytes.py asks twice more for bytes of rows."""
_RENEW_SECONDS = 30.0
"""Between two readings of credentials: each gives up the connections of all threads."""
_DENIED = ("403 Forbidden", "401 Unauth", "ExpiredToken", "TokenRefreshRequired", "InvalidToken")
"""In errors without a type of their own: those of lists, and of S3 with status 400 for credentials
that are not valid any more."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
"""The same of lists, of a bucket that is not there: S3, Azure, Google."""
_UNSENT = "error sending request"
"""Of a name that is not known, and an address where nothing listens."""
_ERROR_XML = re.compile(
    r"<\?xml.*?<Code>([^<]*)</Code>(?:\s*<Message>([^<]*)</Message>)?.*", re.DOTALL
)
"""What a store says of an error: a code, and mostly a sentence."""
_NO_TIME = datetime.fromtimestamp(0, timezone.utc)
"""What obstore says of an object whose store does not say when it was written."""
_UNIQUE_E_TAG = re.compile(r'"?((?!0{32})[0-9a-f]{32}(-\d+)?|0x[0-9A-F]+)"?')
"""ETags of S3, a hash, and of Azure, a number of each write. MinIO has zeros for what it did not
write itself; other servers make ETags of time and size, such as nginx."""
_NOT_AS_ASKED = ("NotPartial", "UnexpectedRange", "NoContentRange", "ParseContentRange")


class Changed(OSError):
    """The pinned content is not there any more."""


class Denied(OSError):
    """The store has refused to answer."""


class Away(OSError):
    """The store has not answered, or not with what was asked for."""


class NoBucket(Away):
    """There is no bucket of this name; or not yet, as of a store that restarts."""


class Unranged(Away):
    """The store does not answer ranges, and will not if it is asked again."""


class Pin(NamedTuple):
    """Which content of an object is read: every GET asks for it, and compares what comes.

    size_bytes: of the object.  e_tag: strong, None if it has none.  version: in a bucket that keeps
    versions; None elsewhere.  modified: when it was written, to the second.
    """

    size_bytes: int
    e_tag: str | None
    version: str | None
    modified: datetime

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Pin:
        """Take it from what obstore says of an object."""
        e_tag, version = meta.get("e_tag"), meta.get("version")
        # RFC 9110: a weak one never satisfies If-Match.
        strong = e_tag if e_tag and not e_tag.startswith("W/") else None
        kept = version if version and version != "null" else None
        return cls(int(meta["size"]), strong, kept, meta["last_modified"])

    @property
    def mtime_ns(self) -> int:
        """When it was written, in nanoseconds since 1970, to the second."""
        return int(self.modified.timestamp()) * 10**9

    @property
    def ctime_ns(self) -> int:
        """The same: an object is written once."""
        return self.mtime_ns

    @property
    def tags(self) -> tuple[str, ...]:
        """What names its content; its time is to the second, and may come back."""
        return (self.tag,)

    @property
    def is_certain(self) -> bool:
        """Whether other content of the same size would be noticed."""
        return bool(self.e_tag or self.version or self.modified != _NO_TIME)

    @property
    def has_unique_tag(self) -> bool:
        """Whether an object store would give other content another tag, whatever its time."""
        return bool(self.version or (self.e_tag and _UNIQUE_E_TAG.fullmatch(self.e_tag)))

    @property
    def is_settled(self) -> bool:
        """Whether other content would have another time: a web server's ETag may be made of size
        and time alone, in seconds.
        """
        return self.modified.timestamp() < time.time() - SETTLED_SECONDS

    def is_listed_as(self, listed: Pin) -> bool:
        """Whether a list means this content. Its times may be finer, and Azure's ETags have no
        quotes there.
        """
        facts, others = [
            ((pin.e_tag or "").strip('"'), pin.size_bytes, pin.mtime_ns) for pin in (self, listed)
        ]
        return facts == others and bool(facts[0])

    @property
    def conditions(self) -> dict[str, Any]:
        """Options of a GET that fails if the content is another one."""
        found: dict[str, Any] = {}
        if self.version:
            found["version"] = self.version
        if self.e_tag:
            found["if_match"] = self.e_tag
        elif not self.version:
            found["if_unmodified_since"] = self.modified
        return found

    @property
    def tag(self) -> str:
        """A text that other content has not."""
        return self.version or self.e_tag or f"{self.modified.isoformat()} {self.size_bytes}"


class Bucket:
    """A bucket, or a web server. May be used from several threads at once.

    address: a text that is another one for any other bucket.
    """

    def __init__(
        self, url: Url, store: Any = None, *, answer_seconds: float = _ANSWER_SECONDS
    ) -> None:
        """Open it; does no I/O.

        store: of obstore, instead of that of the URL; for tests.  answer_seconds: after which a
        request without an answer has failed.
        Raises: InvalidCorpus if obstore is missing; NoCredentials.
        """
        self.url = url
        self._answer_seconds = answer_seconds
        # Buckets of the same name are others at another endpoint, or of another account.
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "") if url.scheme == "az" else ""
        self.address = " ".join([url.bucket, _endpoint_of(url.scheme), account])
        self._given = store
        self._lock = threading.Lock()
        self._renewed, self._renewed_at = 0, -_RENEW_SECONDS
        self._store = store or _open(url, answer_seconds)

    def get(self, key: str, first: int, end: int, pin: Pin | None, reason: str) -> tuple[Any, Pin]:
        """Return bytes [first, end) of an object, which support the buffer protocol, and its pin.

        pin: what has to be there; None: any content, and of a shorter object fewer bytes.
        reason: of counts.py.
        Raises: FileNotFoundError without a pin; Changed, Denied, Away.
        """
        options = {"range": (first, end)} | (pin.conditions if pin else {})
        try:
            found, meta = self._answered(key, options, reason, pin is not None)
        except Denied as error:
            if pin is None or not pin.version:
                raise
            problem = f"{error.strerror}; a bucket that keeps versions needs s3:GetObjectVersion"
            raise Denied(errno.EACCES, f"{problem} beside s3:GetObject") from error
        now = Pin.of(meta)
        if pin is None:
            if not now.is_certain:
                raise Denied(errno.EACCES, "has neither ETag nor time, so no change would be seen")
            if len(found) != min(end, now.size_bytes) - first:
                raise Away(errno.EIO, f"came with {len(found)} of {end - first} bytes")
            return found, now
        # Not every store obeys the conditions.
        if pin.e_tag and not now.e_tag:  # by a proxy, on the way: it shows nothing
            raise Away(errno.EIO, "came without a strong ETag, which it had when it was opened")
        if now.size_bytes != pin.size_bytes or now.e_tag != pin.e_tag:
            raise Changed(errno.ESTALE, "has been replaced")
        if not (pin.e_tag or pin.version) and now.modified != pin.modified:
            raise Changed(errno.ESTALE, "has been written to")
        if len(found) != end - first:
            raise Away(errno.EIO, f"came with {len(found)} of {end - first} bytes")
        return found, now

    def put_new(self, key: str, content: bytes | mmap) -> str | None:
        """Store an object by one request.  Returns: its tag; None if there is one of this name.

        Raises: FileNotFoundError without the bucket; Denied, Away.
        """
        import obstore
        from obstore import exceptions

        def put(store: Any) -> str | None:
            try:
                stored = obstore.put(store, key, content, mode="create", use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return None
            return stored.get("version") or stored.get("e_tag") or ""

        require_own_process(self.url.bucket)
        return self._renewing(put)

    def head(self, key: str) -> Pin | None:
        """Return what is known of an object; None if there is none.  Raises: Denied, Away."""
        import obstore

        with suppress(FileNotFoundError):
            return Pin.of(self._asked(lambda store: obstore.head(store, key)))
        return None

    def folder(self, key: str) -> tuple[list[tuple[str, Pin]], list[str]]:
        """Return the keys of what lies in a folder: objects with what is known of them, and
        folders.  Raises: Denied, Away.
        """
        import obstore

        prefix = f"{key}/" if key else None
        found = self._asked(lambda store: obstore.list_with_delimiter(store, prefix))
        objects = [(each["path"], Pin.of(each)) for each in found["objects"]]
        return objects, [each.rstrip("/") for each in found["common_prefixes"]]

    def below(self, key: str, pages_max: int | None = None) -> list[tuple[str, Pin]] | None:
        """Return the keys of all objects below a folder, with what is known of them.

        pages_max: how many lists of 1000 names it may take; None if it takes more.
        Raises: Denied, Away.
        """
        import obstore

        def listed(store: Any) -> list[tuple[str, Pin]] | None:
            chunks: Iterator[Sequence[Mapping[str, Any]]]
            chunks = iter(obstore.list(store, f"{key}/" if key else None, chunk_size=1000))
            found: list[tuple[str, Pin]] = []
            for number, chunk in enumerate(chunks):
                if pages_max is not None and number >= pages_max:
                    return None
                if number:
                    REQUESTS.add(INDEX, 0)
                found += [(each["path"], Pin.of(each)) for each in chunk]
            return found

        return self._asked(listed)

    def has_below(self, key: str) -> bool:
        """Return whether there is an object below a folder.  Raises: Denied, Away."""
        import obstore

        return self._asked(
            lambda store: any(map(len, obstore.list(store, f"{key}/", chunk_size=1)))
        )

    def _answered(
        self, key: str, options: Mapping[str, Any], reason: str, is_pinned: bool
    ) -> tuple[Any, Mapping[str, Any]]:
        import obstore

        require_own_process(self.url.bucket)

        def answer(store: Any) -> tuple[Any, Mapping[str, Any], Mapping[str, Any]]:
            result = obstore.get(store, key, options=cast("obstore.GetOptions", options))
            return result.bytes(), result.meta, result.attributes

        size_bytes = 0
        try:
            found, meta, attributes = self._renewing(answer)
            size_bytes = len(found)
        except FileNotFoundError as error:
            if is_pinned:
                raise Changed(errno.ENOENT, "has been removed") from error
            raise
        finally:
            REQUESTS.add(reason, size_bytes)
        if (encoding := attributes.get("Content-Encoding")) not in (None, "", "identity"):
            problem = f"is stored with the content encoding {encoding}, so that it has no ranges"
            raise Denied(errno.EACCES, f"{problem}; upload it unpacked")
        return found, meta

    def _renewing(self, ask: Callable[[Any], Answer]) -> Answer:
        """Return what ask returns for the store; once more with new credentials if it is denied.

        Raises: FileNotFoundError, Changed, Denied, Away.
        """
        renewed = self._renewed
        try:
            with _known_errors(self.url):
                return ask(self._store)
        except Denied:
            self._renew(renewed)
        with _known_errors(self.url):
            return ask(self._store)

    def _renew(self, renewed: int) -> None:
        """Read the credentials again, unless another thread has since, or it was a moment ago: one
        object may be denied for good.  Raises: Denied.
        """
        with self._lock:
            is_due = time.monotonic() - self._renewed_at >= _RENEW_SECONDS
            if self._given is None and self._renewed == renewed and is_due:
                self._renewed_at = time.monotonic()
                try:
                    self._store = _open(self.url, self._answer_seconds)
                except InvalidCorpus as error:
                    raise Denied(errno.EACCES, error.problem) from error
                except credentials.NoCredentials as error:
                    raise Denied(errno.EACCES, str(error.strerror)) from error
                self._renewed += 1

    def _asked(self, ask: Callable[[Any], Answer]) -> Answer:
        """Like `_renewing`, for what is asked of names: counted as one request."""
        require_own_process(self.url.bucket)
        try:
            return self._renewing(ask)
        finally:
            REQUESTS.add(INDEX, 0)


@contextmanager
def _known_errors(url: Url) -> Iterator[None]:
    """Raise our errors instead of those of obstore."""
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
    except (exceptions.PreconditionError, exceptions.NotModifiedError) as error:
        raise Changed(errno.ESTALE, "has been replaced") from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise _denied(url, error) from error
    except (exceptions.BaseError, ValueError) as error:
        text = str(error)
        if any(word in text for word in _DENIED):
            raise _denied(url, error) from error
        if any(word in text for word in _NO_BUCKET):
            problem = f"there is no bucket {url.place!r}: check its name"
            endpoint = _endpoint_of(url.scheme)
            place = f", and that {endpoint} is its store" if endpoint else ""
            raise NoBucket(errno.ENXIO, f"{problem}{place}") from error
        if "169.254.169.254" in text or "metadata.google.internal" in text:
            problem = "there are no credentials here"
            raise Denied(errno.EACCES, f"{problem}; {credentials.cure(url.scheme)}") from error
        problem = _in_short(text)
        if any(word in text for word in _NOT_AS_ASKED):
            raise Unranged(errno.EIO, problem) from error
        if _UNSENT in text and (endpoint := _endpoint_of(url.scheme)):
            problem = f"no store answers at {endpoint} ({problem})"
        raise Away(errno.EIO, problem) from error


def _denied(url: Url, error: Exception) -> Denied:
    problem = f"access denied ({_in_short(str(error))})"
    return Denied(errno.EACCES, f"{problem}; {credentials.cure(url.scheme)}")


def _in_short(text: str) -> str:
    """Return what an error of obstore says in one line. It names an address, and no secret."""
    line = _ERROR_XML.sub(r"\1 \2", text).partition("\n")[0].strip()
    if any(word in text for word in _NOT_AS_ASKED):
        return f"the answer is not the range that was asked for: {line}"
    _, mark, status = line.partition("Server returned ")
    found = (mark + status if mark else line)[:300]
    return found if found.isprintable() else ascii(found)


def _open(url: Url, answer_seconds: float) -> Any:
    """Return obstore's store of a bucket; does no I/O.  Raises: InvalidCorpus, NoCredentials."""
    try:
        from obstore import exceptions, store
    except ImportError as error:
        raise InvalidCorpus(url.bucket, missing(error, "object-store")) from error

    general: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=answer_seconds),
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            "allow_http": _endpoint_of(url.scheme).startswith("http://"),
        },
        "retry_config": {
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        },
    }
    try:
        if url.scheme == "s3":
            return store.S3Store(url.place, **general, **credentials.s3_options())
        if url.scheme == "gs":
            return store.GCSStore(url.place, **general)
        if url.scheme == "az":
            return store.AzureStore(url.place, **general)
        return store.HTTPStore(url.bucket, **general)
    except (exceptions.BaseError, ValueError) as error:
        problem = f"cannot be opened: {_in_short(str(error))}; {credentials.cure(url.scheme)}"
        raise InvalidCorpus(url.bucket, problem) from error


def _endpoint_of(scheme: str) -> str:
    names = {
        "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "gs": ("GOOGLE_BASE_URL",),
        "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    }
    return next((os.environ[name] for name in names.get(scheme, ()) if os.environ.get(name)), "")


_BUCKETS: dict[str, Bucket] = {}
_LOCK = threading.Lock()
_is_fork_of_user = False


def bucket_of(url: Url) -> Bucket:
    """Return the bucket of a URL, which this process opens once.

    Raises: InvalidCorpus if it cannot be opened, and in a fork of a process that has used one.
    """
    require_own_process(url.bucket)
    if not url.place:
        raise InvalidCorpus(f"{url.bucket}/{url.key}", "names no bucket; write SCHEME://BUCKET/KEY")
    with _LOCK:
        if url.bucket not in _BUCKETS:
            try:
                _BUCKETS[url.bucket] = Bucket(url)
            except credentials.NoCredentials as error:
                raise InvalidCorpus(url.bucket, str(error.strerror)) from error
        return _BUCKETS[url.bucket]


def require_own_process(path: str) -> None:
    """Raise InvalidCorpus in a fork of a process that has used a bucket: a request would hang for
    ever, since none of the threads of the library are there.
    """
    if _is_fork_of_user:
        problem = "is in an object store, which was used before this process was forked"
        cure = "use it after the fork only, or start the process by spawn"
        raise InvalidCorpus(path, f"{problem}: a request would hang here; {cure}")


def _forget() -> None:
    """Note in a fork what its parent did."""
    global _is_fork_of_user, _LOCK
    _is_fork_of_user = _is_fork_of_user or bool(_BUCKETS)
    _BUCKETS.clear()
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_forget)
