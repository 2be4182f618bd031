from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
import sacremoses

from transformer_kit.data.text_rules import TextRule


def rule(**on: bool) -> TextRule:
    return TextRule("en", **{"normalize": False, "tokenize": False, "lowercase": False} | on)


def test_each_step_alone_and_none() -> None:
    line = "“Don't”  STOP…"
    assert rule().apply([line]) == [line]
    assert rule(lowercase=True).apply([line]) == ["“don't”  stop…"]
    assert rule(normalize=True).apply([line]) == ['"Don\'t" STOP...']
    assert rule(tokenize=True).apply(["Don't, <you> & me."]) == ["Don 't , < you > & me ."]


def test_undo_joins_tokens_and_leaves_other_rules_alone() -> None:
    assert rule(tokenize=True).undo(["do n't , stop ."]) == ["do n't, stop."]
    assert rule(lowercase=True).undo(["a , b"]) == ["a , b"]
    assert rule(tokenize=True).undo(["", " "]) == ["", ""]


@pytest.mark.parametrize("language", ["en", "de", "fr"])
def test_prepared_letter_sets_change_no_token(language: str) -> None:
    lines = ["Mr. Smith e.g. U.S. left. then No. 7, Nr. 5. Ärzte z.B. heute. Ünder x.", "1. a.b. c. Über. öl. ."]
    reference = sacremoses.MosesTokenizer(lang=language)
    expected = [reference.tokenize(line, escape=False, return_str=True) for line in lines]
    assert TextRule(language, normalize=False, tokenize=True, lowercase=False).apply(lines) == expected


@pytest.mark.parametrize(("language", "tokens"), [("en", 12_968), ("de", 12_103)])
def test_multi30k_references_come_out_as_published(language: str, tokens: int) -> None:
    if "TKIT_DATA" not in os.environ:
        pytest.skip("TKIT_DATA does not name the data folder")
    folder = Path(os.environ["TKIT_DATA"]) / "multi30k"
    raw, published = (
        gzip.decompress((folder / f"test_2016_flickr{kind}.{language}.gz").read_bytes()).decode().split("\n")[:-1]
        for kind in ("", ".lc.norm.tok")
    )
    ours = TextRule(language, normalize=True, tokenize=True, lowercase=True).apply(raw)
    for escaped, plain in (("&apos;", "'"), ("&quot;", '"'), ("&amp;", "&")):
        published = [line.replace(escaped, plain) for line in published]
    assert ours == published
    assert sum(len(line.split()) for line in ours) == tokens
