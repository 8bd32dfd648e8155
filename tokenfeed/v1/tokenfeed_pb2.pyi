from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetBatchRequest(_message.Message):
    __slots__ = ("batch_size", "stream", "first_sample", "first_row", "num_batches", "rank", "world_size", "end_sample", "planes", "declined_planes", "expected_identity", "client_name", "trainer_sample", "is_last", "is_tool")
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    NUM_BATCHES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    END_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    DECLINED_PLANES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    TRAINER_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    IS_TOOL_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    stream: Stream
    first_sample: int
    first_row: int
    num_batches: int
    rank: int
    world_size: int
    end_sample: int
    planes: _containers.RepeatedCompositeFieldContainer[WantedPlane]
    declined_planes: _containers.RepeatedScalarFieldContainer[int]
    expected_identity: bytes
    client_name: str
    trainer_sample: int
    is_last: bool
    is_tool: bool
    def __init__(self, batch_size: _Optional[int] = ..., stream: _Optional[_Union[Stream, _Mapping]] = ..., first_sample: _Optional[int] = ..., first_row: _Optional[int] = ..., num_batches: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., end_sample: _Optional[int] = ..., planes: _Optional[_Iterable[_Union[WantedPlane, _Mapping]]] = ..., declined_planes: _Optional[_Iterable[int]] = ..., expected_identity: _Optional[bytes] = ..., client_name: _Optional[str] = ..., trainer_sample: _Optional[int] = ..., is_last: bool = ..., is_tool: bool = ...) -> None: ...

class GetRowsRequest(_message.Message):
    __slots__ = ("stream", "samples", "planes", "declined_planes", "expected_identity", "client_name")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    DECLINED_PLANES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    stream: Stream
    samples: _containers.RepeatedScalarFieldContainer[int]
    planes: _containers.RepeatedCompositeFieldContainer[WantedPlane]
    declined_planes: _containers.RepeatedScalarFieldContainer[int]
    expected_identity: bytes
    client_name: str
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ..., samples: _Optional[_Iterable[int]] = ..., planes: _Optional[_Iterable[_Union[WantedPlane, _Mapping]]] = ..., declined_planes: _Optional[_Iterable[int]] = ..., expected_identity: _Optional[bytes] = ..., client_name: _Optional[str] = ...) -> None: ...

class Stream(_message.Message):
    __slots__ = ("seed", "sources", "stage", "redactions")
    SEED_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REDACTIONS_FIELD_NUMBER: _ClassVar[int]
    seed: int
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    stage: Stage
    redactions: _containers.RepeatedCompositeFieldContainer[Redaction]
    def __init__(self, seed: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., stage: _Optional[_Union[Stage, _Mapping]] = ..., redactions: _Optional[_Iterable[_Union[Redaction, _Mapping]]] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("number", "dataset", "order", "seed", "long_documents", "expected_digest", "group_blocks")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LONG_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    GROUP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    number: int
    dataset: str
    order: str
    seed: int
    long_documents: str
    expected_digest: bytes
    group_blocks: int
    def __init__(self, number: _Optional[int] = ..., dataset: _Optional[str] = ..., order: _Optional[str] = ..., seed: _Optional[int] = ..., long_documents: _Optional[str] = ..., expected_digest: _Optional[bytes] = ..., group_blocks: _Optional[int] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("context_length", "index", "first_sample", "previous_identity", "shares")
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    context_length: int
    index: int
    first_sample: int
    previous_identity: bytes
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    def __init__(self, context_length: _Optional[int] = ..., index: _Optional[int] = ..., first_sample: _Optional[int] = ..., previous_identity: _Optional[bytes] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("source", "weight", "base")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    source: int
    weight: int
    base: int
    def __init__(self, source: _Optional[int] = ..., weight: _Optional[int] = ..., base: _Optional[int] = ...) -> None: ...

class WantedPlane(_message.Message):
    __slots__ = ("kind", "expected_fingerprint")
    KIND_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    kind: int
    expected_fingerprint: bytes
    def __init__(self, kind: _Optional[int] = ..., expected_fingerprint: _Optional[bytes] = ...) -> None: ...

class Redaction(_message.Message):
    __slots__ = ("first_sample", "source", "list_hash")
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LIST_HASH_FIELD_NUMBER: _ClassVar[int]
    first_sample: int
    source: int
    list_hash: bytes
    def __init__(self, first_sample: _Optional[int] = ..., source: _Optional[int] = ..., list_hash: _Optional[bytes] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("first_sample", "first_row", "row_count", "token_bytes", "checksum", "identity", "document_starts", "loss_mask", "token_counts", "redacted", "tokens")
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_STARTS_FIELD_NUMBER: _ClassVar[int]
    LOSS_MASK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    REDACTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    first_sample: int
    first_row: int
    row_count: int
    token_bytes: int
    checksum: int
    identity: bytes
    document_starts: Plane
    loss_mask: Plane
    token_counts: Plane
    redacted: Plane
    tokens: bytes
    def __init__(self, first_sample: _Optional[int] = ..., first_row: _Optional[int] = ..., row_count: _Optional[int] = ..., token_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., identity: _Optional[bytes] = ..., document_starts: _Optional[_Union[Plane, _Mapping]] = ..., loss_mask: _Optional[_Union[Plane, _Mapping]] = ..., token_counts: _Optional[_Union[Plane, _Mapping]] = ..., redacted: _Optional[_Union[Plane, _Mapping]] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class Plane(_message.Message):
    __slots__ = ("row_bytes", "content", "fingerprint")
    ROW_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    row_bytes: _containers.RepeatedScalarFieldContainer[int]
    content: bytes
    fingerprint: bytes
    def __init__(self, row_bytes: _Optional[_Iterable[int]] = ..., content: _Optional[bytes] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("dataset", "context_length", "long_documents", "order")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    LONG_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    context_length: int
    long_documents: str
    order: str
    def __init__(self, dataset: _Optional[str] = ..., context_length: _Optional[int] = ..., long_documents: _Optional[str] = ..., order: _Optional[str] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("datasets", "orders", "limits", "server_version", "contract_revisions", "server_time_ms")
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_REVISIONS_FIELD_NUMBER: _ClassVar[int]
    SERVER_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[Dataset]
    orders: _containers.RepeatedScalarFieldContainer[str]
    limits: Limits
    server_version: str
    contract_revisions: _containers.RepeatedScalarFieldContainer[int]
    server_time_ms: int
    def __init__(self, datasets: _Optional[_Iterable[_Union[Dataset, _Mapping]]] = ..., orders: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., server_version: _Optional[str] = ..., contract_revisions: _Optional[_Iterable[int]] = ..., server_time_ms: _Optional[int] = ...) -> None: ...

class Dataset(_message.Message):
    __slots__ = ("name", "dtype", "token_bytes", "token_count", "file_count", "longest_file_tokens", "fingerprint", "digest", "rows", "planes", "documents", "redaction_lists", "erased_list", "row_tokens")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    LONGEST_FILE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    REDACTION_LISTS_FIELD_NUMBER: _ClassVar[int]
    ERASED_LIST_FIELD_NUMBER: _ClassVar[int]
    ROW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    token_bytes: int
    token_count: int
    file_count: int
    longest_file_tokens: int
    fingerprint: bytes
    digest: bytes
    rows: _containers.RepeatedCompositeFieldContainer[OrderRows]
    planes: _containers.RepeatedCompositeFieldContainer[DatasetPlane]
    documents: Documents
    redaction_lists: _containers.RepeatedScalarFieldContainer[bytes]
    erased_list: bytes
    row_tokens: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., token_bytes: _Optional[int] = ..., token_count: _Optional[int] = ..., file_count: _Optional[int] = ..., longest_file_tokens: _Optional[int] = ..., fingerprint: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., rows: _Optional[_Iterable[_Union[OrderRows, _Mapping]]] = ..., planes: _Optional[_Iterable[_Union[DatasetPlane, _Mapping]]] = ..., documents: _Optional[_Union[Documents, _Mapping]] = ..., redaction_lists: _Optional[_Iterable[bytes]] = ..., erased_list: _Optional[bytes] = ..., row_tokens: _Optional[int] = ...) -> None: ...

class OrderRows(_message.Message):
    __slots__ = ("order", "rows", "pieces_hash", "row_pieces_max", "target_count", "progress", "documents", "one_token_documents", "dropped_documents", "truncated_documents", "cropped_tokens")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PIECES_HASH_FIELD_NUMBER: _ClassVar[int]
    ROW_PIECES_MAX_FIELD_NUMBER: _ClassVar[int]
    TARGET_COUNT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    ONE_TOKEN_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    CROPPED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    order: str
    rows: int
    pieces_hash: bytes
    row_pieces_max: int
    target_count: int
    progress: float
    documents: int
    one_token_documents: int
    dropped_documents: int
    truncated_documents: int
    cropped_tokens: int
    def __init__(self, order: _Optional[str] = ..., rows: _Optional[int] = ..., pieces_hash: _Optional[bytes] = ..., row_pieces_max: _Optional[int] = ..., target_count: _Optional[int] = ..., progress: _Optional[float] = ..., documents: _Optional[int] = ..., one_token_documents: _Optional[int] = ..., dropped_documents: _Optional[int] = ..., truncated_documents: _Optional[int] = ..., cropped_tokens: _Optional[int] = ...) -> None: ...

class DatasetPlane(_message.Message):
    __slots__ = ("kind", "fingerprint")
    KIND_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    kind: int
    fingerprint: bytes
    def __init__(self, kind: _Optional[int] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class Documents(_message.Message):
    __slots__ = ("count", "file_count")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    file_count: int
    def __init__(self, count: _Optional[int] = ..., file_count: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("batch_size_max", "batch_bytes_max", "world_size_max", "request_bytes_max", "row_bytes_max")
    BATCH_SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    ROW_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    batch_size_max: int
    batch_bytes_max: int
    world_size_max: int
    request_bytes_max: int
    row_bytes_max: int
    def __init__(self, batch_size_max: _Optional[int] = ..., batch_bytes_max: _Optional[int] = ..., world_size_max: _Optional[int] = ..., request_bytes_max: _Optional[int] = ..., row_bytes_max: _Optional[int] = ...) -> None: ...
