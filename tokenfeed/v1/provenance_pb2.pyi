from tokenfeed.v1 import tokenfeed_pb2 as _tokenfeed_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LocateRequest(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _tokenfeed_pb2.GetBatchRequest
    def __init__(self, rows: _Optional[_Union[_tokenfeed_pb2.GetBatchRequest, _Mapping]] = ...) -> None: ...

class LocateResponse(_message.Message):
    __slots__ = ("rows", "files")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[LocatedRow]
    files: _containers.RepeatedCompositeFieldContainer[SourceFile]
    def __init__(self, rows: _Optional[_Iterable[_Union[LocatedRow, _Mapping]]] = ..., files: _Optional[_Iterable[_Union[SourceFile, _Mapping]]] = ...) -> None: ...

class LocatedRow(_message.Message):
    __slots__ = ("sample", "source", "source_sample", "epoch", "ranges", "padding_tokens", "redacted", "deleted")
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    PADDING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REDACTED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    sample: int
    source: int
    source_sample: int
    epoch: int
    ranges: _containers.RepeatedCompositeFieldContainer[LocatedRange]
    padding_tokens: int
    redacted: _containers.RepeatedCompositeFieldContainer[TokenSpan]
    deleted: _containers.RepeatedCompositeFieldContainer[TokenSpan]
    def __init__(self, sample: _Optional[int] = ..., source: _Optional[int] = ..., source_sample: _Optional[int] = ..., epoch: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[LocatedRange, _Mapping]]] = ..., padding_tokens: _Optional[int] = ..., redacted: _Optional[_Iterable[_Union[TokenSpan, _Mapping]]] = ..., deleted: _Optional[_Iterable[_Union[TokenSpan, _Mapping]]] = ...) -> None: ...

class TokenSpan(_message.Message):
    __slots__ = ("first_token", "end_token")
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_FIELD_NUMBER: _ClassVar[int]
    first_token: int
    end_token: int
    def __init__(self, first_token: _Optional[int] = ..., end_token: _Optional[int] = ...) -> None: ...

class LocatedRange(_message.Message):
    __slots__ = ("file", "first_token", "end_token", "document")
    FILE_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    file: int
    first_token: int
    end_token: int
    document: Document
    def __init__(self, file: _Optional[int] = ..., first_token: _Optional[int] = ..., end_token: _Optional[int] = ..., document: _Optional[_Union[Document, _Mapping]] = ...) -> None: ...

class Document(_message.Message):
    __slots__ = ("number", "id", "file", "first_token", "end_token")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_FIELD_NUMBER: _ClassVar[int]
    number: int
    id: str
    file: int
    first_token: int
    end_token: int
    def __init__(self, number: _Optional[int] = ..., id: _Optional[str] = ..., file: _Optional[int] = ..., first_token: _Optional[int] = ..., end_token: _Optional[int] = ...) -> None: ...

class SourceFile(_message.Message):
    __slots__ = ("source", "file", "name")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    source: int
    file: int
    name: str
    def __init__(self, source: _Optional[int] = ..., file: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class FindRequest(_message.Message):
    __slots__ = ("stream", "first_sample", "end_sample", "source", "document", "document_id", "range", "first_candidate", "expected_identity", "client_name")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    END_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    FIRST_CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    stream: _tokenfeed_pb2.Stream
    first_sample: int
    end_sample: int
    source: int
    document: int
    document_id: str
    range: FileRange
    first_candidate: int
    expected_identity: bytes
    client_name: str
    def __init__(self, stream: _Optional[_Union[_tokenfeed_pb2.Stream, _Mapping]] = ..., first_sample: _Optional[int] = ..., end_sample: _Optional[int] = ..., source: _Optional[int] = ..., document: _Optional[int] = ..., document_id: _Optional[str] = ..., range: _Optional[_Union[FileRange, _Mapping]] = ..., first_candidate: _Optional[int] = ..., expected_identity: _Optional[bytes] = ..., client_name: _Optional[str] = ...) -> None: ...

class FileRange(_message.Message):
    __slots__ = ("file", "file_name", "first_token", "end_token")
    FILE_FIELD_NUMBER: _ClassVar[int]
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_FIELD_NUMBER: _ClassVar[int]
    file: int
    file_name: str
    first_token: int
    end_token: int
    def __init__(self, file: _Optional[int] = ..., file_name: _Optional[str] = ..., first_token: _Optional[int] = ..., end_token: _Optional[int] = ...) -> None: ...

class FindResponse(_message.Message):
    __slots__ = ("looked_for", "files", "rows", "next_candidate", "candidates")
    LOOKED_FOR_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    looked_for: _containers.RepeatedCompositeFieldContainer[LocatedRange]
    files: _containers.RepeatedCompositeFieldContainer[SourceFile]
    rows: _containers.RepeatedCompositeFieldContainer[FoundRow]
    next_candidate: int
    candidates: int
    def __init__(self, looked_for: _Optional[_Iterable[_Union[LocatedRange, _Mapping]]] = ..., files: _Optional[_Iterable[_Union[SourceFile, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[FoundRow, _Mapping]]] = ..., next_candidate: _Optional[int] = ..., candidates: _Optional[int] = ...) -> None: ...

class FoundRow(_message.Message):
    __slots__ = ("sample", "source_sample", "epoch", "spans", "redacted", "deleted")
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    REDACTED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    sample: int
    source_sample: int
    epoch: int
    spans: _containers.RepeatedCompositeFieldContainer[TokenSpan]
    redacted: _containers.RepeatedCompositeFieldContainer[TokenSpan]
    deleted: _containers.RepeatedCompositeFieldContainer[TokenSpan]
    def __init__(self, sample: _Optional[int] = ..., source_sample: _Optional[int] = ..., epoch: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[TokenSpan, _Mapping]]] = ..., redacted: _Optional[_Iterable[_Union[TokenSpan, _Mapping]]] = ..., deleted: _Optional[_Iterable[_Union[TokenSpan, _Mapping]]] = ...) -> None: ...

class CoverageRequest(_message.Message):
    __slots__ = ("stream", "expected_identity", "client_name", "samples", "first_place")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FIRST_PLACE_FIELD_NUMBER: _ClassVar[int]
    stream: _tokenfeed_pb2.Stream
    expected_identity: bytes
    client_name: str
    samples: _containers.RepeatedCompositeFieldContainer[SampleSpan]
    first_place: int
    def __init__(self, stream: _Optional[_Union[_tokenfeed_pb2.Stream, _Mapping]] = ..., expected_identity: _Optional[bytes] = ..., client_name: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[SampleSpan, _Mapping]]] = ..., first_place: _Optional[int] = ...) -> None: ...

class SampleSpan(_message.Message):
    __slots__ = ("first_sample", "end_sample")
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    END_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    first_sample: int
    end_sample: int
    def __init__(self, first_sample: _Optional[int] = ..., end_sample: _Optional[int] = ...) -> None: ...

class CoverageResponse(_message.Message):
    __slots__ = ("ranges", "files", "row_count", "next_place", "places")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEXT_PLACE_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[CoveredRange]
    files: _containers.RepeatedCompositeFieldContainer[SourceFile]
    row_count: int
    next_place: int
    places: int
    def __init__(self, ranges: _Optional[_Iterable[_Union[CoveredRange, _Mapping]]] = ..., files: _Optional[_Iterable[_Union[SourceFile, _Mapping]]] = ..., row_count: _Optional[int] = ..., next_place: _Optional[int] = ..., places: _Optional[int] = ...) -> None: ...

class CoveredRange(_message.Message):
    __slots__ = ("file", "first_token", "end_token", "row_count", "first_document", "end_document")
    FILE_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    END_DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    file: int
    first_token: int
    end_token: int
    row_count: int
    first_document: int
    end_document: int
    def __init__(self, file: _Optional[int] = ..., first_token: _Optional[int] = ..., end_token: _Optional[int] = ..., row_count: _Optional[int] = ..., first_document: _Optional[int] = ..., end_document: _Optional[int] = ...) -> None: ...
