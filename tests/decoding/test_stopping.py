from __future__ import annotations

import pytest

from transformer_kit.decoding.stopping import certain, first_stop


@pytest.mark.parametrize(
    ("text", "stops", "at"),
    [("abc", [], None), ("abc", ["d"], None), ("abcabc", ["ca", "b"], 1), ("abc", ["abcd"], None), ("aab", ["ab"], 1)],
)
def test_the_earliest_stop_string_counts(text: str, stops: list[str], at: int | None) -> None:
    assert first_stop(text, stops) == at


@pytest.mark.parametrize(
    ("text", "stops", "sure"),
    [
        ("abc", [], "abc"),
        ("abc\ufffd", [], "abc"),
        ("abc\ufffd\ufffd", ["c!"], "ab"),
        ("ab\n", ["\n\n"], "ab"),
        ("abEN", ["END", "NO"], "ab"),
        ("abE", ["END"], "ab"),
        ("abEx", ["END"], "abEx"),
        ("aaa", ["aaaa"], ""),
        ("", ["x"], ""),
    ],
)
def test_only_what_stays_is_certain(text: str, stops: list[str], sure: str) -> None:
    assert certain(text, stops) == sure
