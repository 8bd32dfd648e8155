from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ("streams_max",)
    STREAMS_MAX_FIELD_NUMBER: _ClassVar[int]
    streams_max: int
    def __init__(self, streams_max: _Optional[int] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("server_version", "started_ms", "now_ms", "draining", "threads", "anonymous_bytes", "resident_bytes", "memory_limit_bytes", "datasets", "streams", "streams_omitted", "streams_open", "streams_max", "refusals", "evictions", "second_bytes", "bytes_per_second", "object_requests", "object_cache")
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    ANONYMOUS_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_OMITTED_FIELD_NUMBER: _ClassVar[int]
    STREAMS_OPEN_FIELD_NUMBER: _ClassVar[int]
    STREAMS_MAX_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    SECOND_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    OBJECT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    OBJECT_CACHE_FIELD_NUMBER: _ClassVar[int]
    server_version: str
    started_ms: int
    now_ms: int
    draining: bool
    threads: int
    anonymous_bytes: int
    resident_bytes: int
    memory_limit_bytes: int
    datasets: _containers.RepeatedCompositeFieldContainer[DatasetStatus]
    streams: _containers.RepeatedCompositeFieldContainer[StreamStatus]
    streams_omitted: int
    streams_open: int
    streams_max: int
    refusals: _containers.RepeatedCompositeFieldContainer[Refusals]
    evictions: int
    second_bytes: _containers.RepeatedScalarFieldContainer[int]
    bytes_per_second: float
    object_requests: _containers.RepeatedCompositeFieldContainer[ObjectRequests]
    object_cache: ObjectCache
    def __init__(self, server_version: _Optional[str] = ..., started_ms: _Optional[int] = ..., now_ms: _Optional[int] = ..., draining: bool = ..., threads: _Optional[int] = ..., anonymous_bytes: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., datasets: _Optional[_Iterable[_Union[DatasetStatus, _Mapping]]] = ..., streams: _Optional[_Iterable[_Union[StreamStatus, _Mapping]]] = ..., streams_omitted: _Optional[int] = ..., streams_open: _Optional[int] = ..., streams_max: _Optional[int] = ..., refusals: _Optional[_Iterable[_Union[Refusals, _Mapping]]] = ..., evictions: _Optional[int] = ..., second_bytes: _Optional[_Iterable[int]] = ..., bytes_per_second: _Optional[float] = ..., object_requests: _Optional[_Iterable[_Union[ObjectRequests, _Mapping]]] = ..., object_cache: _Optional[_Union[ObjectCache, _Mapping]] = ...) -> None: ...

class ObjectCache(_message.Message):
    __slots__ = ("size_bytes", "blocks", "cached_blocks", "hits", "misses")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    blocks: int
    cached_blocks: int
    hits: int
    misses: int
    def __init__(self, size_bytes: _Optional[int] = ..., blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ...) -> None: ...

class ObjectRequests(_message.Message):
    __slots__ = ("reason", "requests", "bytes")
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    reason: str
    requests: int
    bytes: int
    def __init__(self, reason: _Optional[str] = ..., requests: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class DatasetStatus(_message.Message):
    __slots__ = ("name", "lost", "format", "dtype", "token_count", "file_count", "size_bytes", "fingerprint", "resident_share", "warm_up_share", "cold", "rows", "token_bytes", "rows_per_second", "token_bytes_per_second", "second_bytes", "making")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_SHARE_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_SHARE_FIELD_NUMBER: _ClassVar[int]
    COLD_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SECOND_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAKING_FIELD_NUMBER: _ClassVar[int]
    name: str
    lost: str
    format: str
    dtype: str
    token_count: int
    file_count: int
    size_bytes: int
    fingerprint: bytes
    resident_share: float
    warm_up_share: float
    cold: bool
    rows: int
    token_bytes: int
    rows_per_second: float
    token_bytes_per_second: float
    second_bytes: _containers.RepeatedScalarFieldContainer[int]
    making: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, name: _Optional[str] = ..., lost: _Optional[str] = ..., format: _Optional[str] = ..., dtype: _Optional[str] = ..., token_count: _Optional[int] = ..., file_count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., fingerprint: _Optional[bytes] = ..., resident_share: _Optional[float] = ..., warm_up_share: _Optional[float] = ..., cold: bool = ..., rows: _Optional[int] = ..., token_bytes: _Optional[int] = ..., rows_per_second: _Optional[float] = ..., token_bytes_per_second: _Optional[float] = ..., second_bytes: _Optional[_Iterable[int]] = ..., making: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("what", "share")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    what: str
    share: float
    def __init__(self, what: _Optional[str] = ..., share: _Optional[float] = ...) -> None: ...

class StreamStatus(_message.Message):
    __slots__ = ("client_name", "address", "rank", "world_size", "batch_size", "context_length", "order", "datasets", "datasets_omitted", "next_sample", "rows", "tokens", "tokens_per_second", "waits_for_server", "waits_for_client", "calls", "age_seconds", "idle_seconds", "trainer_sample", "has_ended")
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    DATASETS_OMITTED_FIELD_NUMBER: _ClassVar[int]
    NEXT_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_SERVER_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_CLIENT_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRAINER_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    HAS_ENDED_FIELD_NUMBER: _ClassVar[int]
    client_name: str
    address: str
    rank: int
    world_size: int
    batch_size: int
    context_length: int
    order: str
    datasets: _containers.RepeatedScalarFieldContainer[str]
    datasets_omitted: int
    next_sample: int
    rows: int
    tokens: int
    tokens_per_second: float
    waits_for_server: float
    waits_for_client: float
    calls: int
    age_seconds: float
    idle_seconds: float
    trainer_sample: int
    has_ended: bool
    def __init__(self, client_name: _Optional[str] = ..., address: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., batch_size: _Optional[int] = ..., context_length: _Optional[int] = ..., order: _Optional[str] = ..., datasets: _Optional[_Iterable[str]] = ..., datasets_omitted: _Optional[int] = ..., next_sample: _Optional[int] = ..., rows: _Optional[int] = ..., tokens: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., waits_for_server: _Optional[float] = ..., waits_for_client: _Optional[float] = ..., calls: _Optional[int] = ..., age_seconds: _Optional[float] = ..., idle_seconds: _Optional[float] = ..., trainer_sample: _Optional[int] = ..., has_ended: bool = ...) -> None: ...

class Refusals(_message.Message):
    __slots__ = ("status", "reason", "count")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    status: str
    reason: str
    count: int
    def __init__(self, status: _Optional[str] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...
