import pytest

from betty import BettyError
from betty.memory import parse_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("1B", 1),
        ("512MB", 512_000_000),
        ("20GiB", 20 * 1024**3),
        ("1.5 GiB", 3 * 2**29),
        ("0.5kib", 512),
        (" 2 TB ", 2 * 10**12),
    ],
)
def test_sizes_are_read_in_powers_of_1000_and_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1,5GiB", "1e9", "20Gb/s", "20 apples", "nan", "٣GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BettyError, match="is not a size like 20GiB, 512MB or 4096"):
        parse_size(text)


@pytest.mark.parametrize("text", ["0", "0.1", "9999999TiB", "9" * 19 + "TiB"])
def test_sizes_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(BettyError, match=r"is not a size from 1 byte to 1,048,576\.00 TiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (3 * 2**29, "1.50 GiB"),
        (2**40, "1.00 TiB"),
        (2**60, "1,048,576.00 TiB"),
    ],
)
def test_sizes_are_written_in_the_unit_that_fits(size: int, text: str) -> None:
    assert size_text(size) == text
