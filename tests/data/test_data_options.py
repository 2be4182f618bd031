from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from corpora import byte_options, data_options, documents_options, labels_options, tokenizer_options

from transformer_kit.data.options import (
    BatchOptions,
    ColumnOptions,
    CorpusOptions,
    FilterOptions,
    GenerateOptions,
    LabelCorpusOptions,
    TextCorpusOptions,
    Unit,
)
from transformer_kit.data.prepare import prepare
from transformer_kit.data.tokenizer_options import SamplingOptions, TextOptions, Unicode
from transformer_kit.errors import ConfigError

CONF = Path(__file__).resolve().parents[2] / "conf"


def keys(value: Any, name: str = "") -> set[str]:
    if is_dataclass(value):
        return {key for field in fields(value) for key in keys(getattr(value, field.name), f"{name}.{field.name}")}
    if isinstance(value, dict):
        return {key for part, inner in value.items() for key in keys(inner, f"{name}.{part}")}
    return {name}


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("data/parallel", data_options(Path("x"), [])),
        ("data/text", documents_options(Path("x"), [])),
        ("data/labels", labels_options(Path("x"), [])),
        ("tokenizer/unigram", tokenizer_options()),
    ],
)
def test_the_yaml_lists_every_option(path: str, options: object) -> None:
    assert keys(yaml.safe_load((CONF / f"{path}.yaml").read_text())) == keys(options)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (CorpusOptions(), "source"),
        (CorpusOptions(source="a", target="b", tsv="c"), "tsv"),
        (CorpusOptions(tsv="a", weight=0.0), "weight"),
        (CorpusOptions(tsv="a", weight=float("nan")), "weight"),
        (CorpusOptions(tsv="a", weight=float("inf")), "weight"),
        (CorpusOptions(tsv="a", tag="2de"), "tag"),
        (CorpusOptions(tsv="a", tag="<2 de>"), "tag"),
        (CorpusOptions(tsv="a", tag="</s>"), "tag"),
        (CorpusOptions(tsv="a", tag="<0x0A>"), "tag"),
        (CorpusOptions(tsv="a", tag="<mask>"), "tag"),
        (CorpusOptions(tsv="a", tag="<extra_id_3>"), "tag"),
        (TextCorpusOptions(), "text"),
        (TextCorpusOptions(text="a", weight=0.0), "weight"),
        (TextCorpusOptions(text="a", start=0.5, end=0.5), "start"),
        (TextCorpusOptions(text="a", end=1.1), "start"),
        (LabelCorpusOptions(), "tsv"),
        (ColumnOptions(text=0, second=None, label=2), "text"),
        (ColumnOptions(text=2, second=1, label=2), "label"),
        (documents_options(Path("x"), [TextCorpusOptions(text="a", end=0.9)]), "train.0.start"),
        (documents_options(Path("x"), [TextCorpusOptions()]), "train.0.text"),
        (documents_options(Path("x"), [], language=""), "language"),
        (documents_options(Path("x"), [], length=0), "length"),
        (documents_options(Path("x"), [], length=22), "batch.tokens"),
        (documents_options(Path("x"), [], pack=False, mask_documents=True), "mask_documents"),
        (documents_options(Path("x"), [], temperature=-1.0), "temperature"),
        (documents_options(Path("x"), [], workers=0), "workers"),
        (labels_options(Path("x"), [LabelCorpusOptions()]), "train.0.tsv"),
        (labels_options(Path("x"), [], columns=ColumnOptions(text=1, second=None, label=0)), "columns.label"),
        (labels_options(Path("x"), [], max_length=4), "max_length"),
        (labels_options(Path("x"), [], max_length=42), "batch.tokens"),
        (tokenizer_options(vocab_size=None), "vocab_size"),
        (tokenizer_options(sentinels=-1), "sentinels"),
        (byte_options(character_coverage=0.99), "character_coverage"),
        (byte_options(kind="char", text=TextOptions(False, False, False, Unicode.nfkc)), "text.unicode"),
        (byte_options(sampling=SamplingOptions(0.1)), "sampling.alpha"),
        (replace(byte_options(), vocab_size=260), "vocab_size"),
        (replace(byte_options(kind="char"), byte_fallback=True), "byte_fallback"),
        (FilterOptions(0, None, None), "min_length"),
        (FilterOptions(3, 2, None), "max_length"),
        (FilterOptions(1, None, 0.9), "max_ratio"),
        (BatchOptions(1, 5), "tokens"),
        (BatchOptions(5, 0), "pool"),
        (GenerateOptions("other", 1), "name"),
        (GenerateOptions("demo_phrases", -1), "seed"),
        (SamplingOptions(1.5), "alpha"),
        (tokenizer_options(vocab_size=4), "vocab_size"),
        (tokenizer_options(character_coverage=0.97), "character_coverage"),
        (tokenizer_options(max_lines=0), "max_lines"),
        (tokenizer_options(sampling=SamplingOptions(-0.1)), "sampling.alpha"),
        (data_options(Path("x"), [CorpusOptions(tsv="a")], temperature=0.0), "temperature"),
        (data_options(Path("x"), [CorpusOptions(tsv="a")], workers=0), "workers"),
        (data_options(Path("x"), [CorpusOptions(tsv="a")], source_language=""), "source_language"),
        (data_options(Path("x"), [CorpusOptions(tsv="a")], generate=GenerateOptions("demo_phrases", 1)), "generate"),
        (data_options(Path("x"), [], generate=GenerateOptions("demo_phrases", 1), target_language="fr"), "generate"),
        (data_options(Path("x"), [CorpusOptions(tsv="a")], valid=[CorpusOptions(source="a")]), "valid.0.target"),
    ],
)
def test_a_value_out_of_range_is_named(options: Any, key: str) -> None:
    assert [name for name, _ in options.problems()][:1] == [key]


def test_good_options_have_no_problem() -> None:
    assert data_options(Path("x"), [CorpusOptions(source="a", target="b", tag="<2de>")]).problems() == []
    assert data_options(Path("x"), [], generate=GenerateOptions("demo_phrases", 1)).problems() == []
    assert tokenizer_options(character_coverage=0.98).problems() == []
    part = TextCorpusOptions(text="a", start=0.9)
    assert documents_options(Path("x"), [part], unit=Unit.file, length=21, mask_documents=True).problems() == []
    assert labels_options(Path("x"), [LabelCorpusOptions(tsv="a")], max_length=41).problems() == []
    assert byte_options().problems() == []
    assert replace(byte_options(kind="char"), vocab_size=99).problems() == []


def test_data_without_a_corpus_are_refused_by_preparing_not_by_printing(tmp_path: Path) -> None:
    options = data_options(tmp_path, [])
    assert options.problems() == []
    with pytest.raises(ConfigError, match=r"data\.train: no corpus"):
        prepare(options, tokenizer_options())
