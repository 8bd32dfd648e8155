from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetBatchRequest(_message.Message):
    __slots__ = ("batch_size", "context_length", "seed", "dataset", "order", "first_sample", "first_row", "num_batches", "rank", "world_size", "expected_identity", "planes", "expected_digest")
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    NUM_BATCHES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    context_length: int
    seed: int
    dataset: str
    order: str
    first_sample: int
    first_row: int
    num_batches: int
    rank: int
    world_size: int
    expected_identity: bytes
    planes: _containers.RepeatedScalarFieldContainer[int]
    expected_digest: bytes
    def __init__(self, batch_size: _Optional[int] = ..., context_length: _Optional[int] = ..., seed: _Optional[int] = ..., dataset: _Optional[str] = ..., order: _Optional[str] = ..., first_sample: _Optional[int] = ..., first_row: _Optional[int] = ..., num_batches: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., expected_identity: _Optional[bytes] = ..., planes: _Optional[_Iterable[int]] = ..., expected_digest: _Optional[bytes] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("first_sample", "first_row", "row_count", "token_bytes", "checksum", "identity", "tokens")
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    first_sample: int
    first_row: int
    row_count: int
    token_bytes: int
    checksum: int
    identity: bytes
    tokens: bytes
    def __init__(self, first_sample: _Optional[int] = ..., first_row: _Optional[int] = ..., row_count: _Optional[int] = ..., token_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., identity: _Optional[bytes] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("dataset", "context_length")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    context_length: int
    def __init__(self, dataset: _Optional[str] = ..., context_length: _Optional[int] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("datasets", "orders", "limits", "server_version", "identity_version")
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_VERSION_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[Dataset]
    orders: _containers.RepeatedScalarFieldContainer[str]
    limits: Limits
    server_version: str
    identity_version: int
    def __init__(self, datasets: _Optional[_Iterable[_Union[Dataset, _Mapping]]] = ..., orders: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., server_version: _Optional[str] = ..., identity_version: _Optional[int] = ...) -> None: ...

class Dataset(_message.Message):
    __slots__ = ("name", "dtype", "token_bytes", "token_count", "file_count", "longest_file_tokens", "fingerprint", "digest", "windows_per_epoch", "window_starts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    LONGEST_FILE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WINDOW_STARTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    token_bytes: int
    token_count: int
    file_count: int
    longest_file_tokens: int
    fingerprint: bytes
    digest: bytes
    windows_per_epoch: int
    window_starts: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., token_bytes: _Optional[int] = ..., token_count: _Optional[int] = ..., file_count: _Optional[int] = ..., longest_file_tokens: _Optional[int] = ..., fingerprint: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., windows_per_epoch: _Optional[int] = ..., window_starts: _Optional[int] = ...) -> None: ...

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
