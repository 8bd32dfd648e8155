"""The checksum of large arrays comes from the C library, and is that of google_crc32c."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest

from tokenfeed.errors import TokenfeedError
from tokenfeed.wire import crc32c

CHECK = (b"123456789", 0xE3069283)
"""The check value of every catalogue of CRCs."""


@pytest.fixture(params=["by the library", "without it"])
def any_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without it":
        monkeypatch.setattr(crc32c, "_library", None)


def test_the_library_behind_the_extension_is_found() -> None:
    """With every wheel of google_crc32c that has its extension."""
    assert google_crc32c.implementation == "c"
    assert crc32c._library is not None


@pytest.mark.usefixtures("any_way")
@pytest.mark.parametrize("size", [0, 1, 3, (1 << 14) - 1, 1 << 14, (1 << 20) + 7])
def test_a_checksum_is_the_published_one_and_continues_another(size: int) -> None:
    """However large, and whatever its type."""
    message, expected = CHECK
    content = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)

    assert crc32c.extend(0, message) == expected
    for array in (content, content[: size // 2 * 2].view(np.uint16), content[1:]):
        whole = google_crc32c.value(message + array.tobytes())
        assert crc32c.extend(expected, array) == whole


@pytest.mark.usefixtures("any_way")
def test_an_array_with_gaps_is_refused() -> None:
    """Its bytes in memory are not its content."""
    with pytest.raises((ValueError, BufferError)):
        crc32c.extend(0, np.zeros((1000, 1000), dtype=np.uint16)[:, :999])


def test_pure_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a hundred times slower than the network."""
    monkeypatch.setattr(google_crc32c, "implementation", "python")

    with pytest.raises(TokenfeedError, match="its C extension does not load"):
        crc32c.require_fast()
