"""From text to tokenizers and memory-mapped ids, once for equal text, tokenizer and options.

- What is particular to pairs, documents and labels is said by a `Form`; this module knows none of them.
- The cache folder holds `tokenizer-KEY/` and `corpus-KEY/`; a key is a SHA-256 over all that the content depends on, so
  changed text or options lead to other folders, and nothing stale is ever read.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transformer_kit.data.corpus import FileFacts, Flaws
from transformer_kit.data.dataset import About, Dataset, DatasetWriter, TrainingCorpus
from transformer_kit.data.documents import Documents
from transformer_kit.data.encoding import Counts, TrainingText
from transformer_kit.data.folders import facts_of, key_of, new_folder
from transformer_kit.data.forms import Form
from transformer_kit.data.labels import Labelled
from transformer_kit.data.options import (
    NO_CORPUS,
    CorpusOptions,
    DataOptions,
)
from transformer_kit.data.pairs import Pairs
from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.data.tokenizer_options import TextOptions, TokenizerOptions
from transformer_kit.data.tokenizer_training import Lines, train_model
from transformer_kit.data.workers import ordered_map
from transformer_kit.errors import ConfigError, DataError
from transformer_kit.logs import get_logger

log = get_logger(__name__)
FORMAT = 2
CHUNK = 4096  # lines that travel to a worker together
TOKENIZER_KEY = "key.txt"


@dataclass(frozen=True)
class Prepared:
    """Everything that training needs of the data.

    Attributes:
        train: the mixture; texts with labels form one corpus.
        valid: all validation corpora, one behind the other; None when none is given.
        data: the options, with the generated corpora filled in.
        labels: the names of the labels, in the order of their numbers; None where there are none.
    """

    tokenizers: Tokenizers
    train: list[TrainingCorpus[Any]]
    valid: Any
    data: DataOptions
    tokenizer: TokenizerOptions
    labels: list[str] | None


@dataclass(frozen=True)
class _Corpus:
    options: Any
    paths: list[Path]
    facts: list[FileFacts]
    lines: int


def prepare(data: DataOptions, tokenizer: TokenizerOptions, tokenizers: Tokenizers | None = None) -> Prepared:
    """Train the tokenizer and encode the corpora, or find both in the cache.

    Args:
        tokenizers: take these instead of training any (a run that goes on has its own).

    Raises:
        ConfigError: options out of range.
        DataError: files that are missing, empty or not parallel, a vocabulary size that the text does not allow,
            filters that leave nothing. Nothing is half written then.
    """
    problems = [f"data.{key}: {message}" for key, message in data.problems()]
    problems += [
        f"tokenizer.{key}: {message}" for key, message in [*tokenizer.problems(), *tokenizer.misfits(data.kind)]
    ]
    problems += [NO_CORPUS] if not data.train and (data.kind != "pairs" or data.generate is None) else []
    if problems:
        raise ConfigError(problems)
    data = with_generated(data)
    form = form_of(data, sampling=tokenizer.sampling.alpha > 0)
    cache = Path(data.cache).expanduser()
    train = [_inspect(form, corpus, cache) for corpus in data.train]
    valid = [_inspect(form, corpus, cache) for corpus in data.valid]
    if tokenizers is None:
        tokenizers = find_tokenizers(form, tokenizer, train, cache, data.workers)
    groups = [[corpus] for corpus in train] if form.mixture else [train]
    corpora = [
        TrainingCorpus(
            _prepare_corpora(form, group, tokenizers, data, training=True), getattr(group[0].options, "weight", 1.0)
        )
        for group in groups
    ]
    held_out = _prepare_corpora(form, valid, tokenizers, data, training=False) if valid else None
    return Prepared(tokenizers, corpora, held_out, data, tokenizer, form.labels)


def prepare_split(
    corpora: Sequence[Any], data: DataOptions, tokenizers: Tokenizers, labels: list[str] | None = None
) -> Any:
    """Corpora that nothing is trained on, prepared as validation data are: one behind the other, nothing filtered.

    Args:
        corpora: such as `data.test`.
        labels: the names of the labels of the training text, where there are labels.

    Raises:
        DataError: see `prepare`.
    """
    form = form_of(data, labels=labels)
    found = [_inspect(form, corpus, Path(data.cache).expanduser()) for corpus in corpora]
    return _prepare_corpora(form, found, tokenizers, data, training=False)


def fingerprints(data: DataOptions) -> dict[str, list[dict[str, str]]]:
    """Name and fingerprint of each corpus that training reads: of its text and what is taken of it, wherever it lies.

    Raises:
        DataError: a file is not there.
    """
    data = with_generated(data)
    form, cache, found = form_of(data), Path(data.cache).expanduser(), {}
    for split in ("train", "valid"):
        found[split] = [
            {
                "name": form.name(corpus),
                "fingerprint": key_of(
                    [[facts_of(path, cache).sha256 for path in form.files(corpus)], *form.identity(corpus)]
                ),
            }
            for corpus in getattr(data, split)
        ]
    return found


def form_of(data: DataOptions, *, sampling: bool = False, labels: list[str] | None = None) -> Form:
    """What preparing needs to know of this kind of data.

    Args:
        sampling: the training text is encoded anew in each epoch.
        labels: names of labels that are known already.
    """
    if data.kind == "pairs":
        return Pairs(data, sampling)
    return Documents(data) if data.kind == "documents" else Labelled(data, labels)


def with_generated(data: DataOptions) -> DataOptions:
    """The options with the files of `data.generate` as corpora, written if they are not there yet."""
    if data.kind != "pairs" or data.generate is None:
        return data
    from transformer_kit.data import synthetic

    assert synthetic.__file__ is not None
    module = Path(synthetic.__file__)
    code = [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (module, *sorted(module.parent.glob("phrases/*.py")))
    ]
    folder = Path(data.cache).expanduser() / f"{data.generate.name}-{key_of([asdict(data.generate), code])[:16]}"
    if not folder.is_dir():
        with new_folder(folder) as made:
            synthetic.generate(made, data.generate.seed)
    name = data.generate.name

    def split(which: str) -> list[CorpusOptions]:
        source, target = (
            str(folder / f"{which}.{language}") for language in (data.source_language, data.target_language)
        )
        return [CorpusOptions(name=f"{name}.{which}", source=source, target=target)]

    return replace(data, generate=None, train=split("train"), valid=split("valid"), test=split("test"))


def find_tokenizers(
    form: Form, options: TokenizerOptions, train: list[_Corpus], cache: Path, workers: int
) -> Tokenizers:
    """The tokenizers at `options.path`, else those in the cache, else newly trained ones."""
    if options.path is not None:
        return Tokenizers.load(Path(options.path).expanduser())
    tags = sorted({tag for corpus in train if (tag := getattr(corpus.options, "tag", None)) is not None})
    choices = {name: value for name, value in asdict(options).items() if name not in ("path", "sampling")}
    choices |= {"kind": options.kind.value, "text": _plain(options.text)}
    texts = [[[fact.sha256 for fact in corpus.facts], *form.identity(corpus.options)] for corpus in train]
    key = key_of([FORMAT, choices, texts, tags, form.languages, *form.vocabulary()])
    folder = cache / f"tokenizer-{key[:16]}"
    if folder.is_dir():
        found = Tokenizers.load(folder)
        if (folder / TOKENIZER_KEY).read_text().split() != [key, found.fingerprint]:
            raise DataError(f"{folder}: holds another tokenizer than was written there; delete it to train anew")
        return found
    started = time.perf_counter()
    rules = [TextRule(name, options.text.normalize, options.text.tokenize, options.text.lowercase)
             for name in form.languages]  # fmt: skip
    every = list(range(len(rules)))
    sides = [every] if options.joint else [[side] for side in every]
    models = [
        train_model(_training_lines(form, train, side, rules, options.max_lines, workers), options, tags)
        for side in sides
    ]
    made = Tokenizers.of(options.kind.tokenizer, models, rules[0], rules[-1])
    with new_folder(folder) as temporary:
        made.save(temporary)
        (temporary / TOKENIZER_KEY).write_text(f"{key} {made.fingerprint}\n")
    sizes = made.source.vocab_size if made.joint else f"{made.source.vocab_size} and {made.target.vocab_size}"
    log.info(f"trained a {options.kind.value} tokenizer of {sizes} pieces in {time.perf_counter() - started:.1f} s")
    return made


def _plain(text: TextOptions) -> dict[str, object]:
    return asdict(text) | {"unicode": text.unicode.value}


def _training_lines(
    form: Form, corpora: list[_Corpus], sides: list[int], rules: list[TextRule], most: int | None, workers: int
) -> Lines:
    total = sum(corpus.lines for corpus in corpora)
    take = total if most is None else min(most, total)
    if all(rules[side].trivial for side in sides):
        workers = 1  # decoding a line costs less than sending it

    def lines() -> Iterator[str]:
        before = 0
        for corpus in corpora:
            prefix = getattr(corpus.options, "prefix", None) or ""
            text = TrainingText(form.reader(corpus.options), prefix, rules, sides, before, take, total)
            for chunk in ordered_map(text, form.chunks(corpus.paths, CHUNK), workers):
                yield from chunk
            before += corpus.lines

    return lines


def _inspect(form: Form, corpus: Any, cache: Path) -> _Corpus:
    paths = form.files(corpus)
    facts = [facts_of(path, cache) for path in paths]
    return _Corpus(corpus, paths, facts, form.check(paths, facts))


def _prepare_corpora(
    form: Form, corpora: list[_Corpus], tokenizers: Tokenizers, data: DataOptions, *, training: bool
) -> Dataset:
    contents = [[[fact.sha256 for fact in corpus.facts], *form.identity(corpus.options)] for corpus in corpora]
    key = key_of([FORMAT, data.kind, contents, tokenizers.fingerprint, *form.settings(training)])
    folder = Path(data.cache).expanduser() / f"corpus-{key[:16]}"
    if folder.is_dir():
        try:
            return _open(form, folder, key, tokenizers)
        except DataError as error:
            log.warning(f"{error} Making it again.")
            shutil.rmtree(folder)
    started = time.perf_counter()
    if training:
        form.learn([corpus.options for corpus in corpora], CHUNK)
    with new_folder(folder) as made:
        counts = _write(form, made, key, corpora, tokenizers, data.workers, training)
    seconds = time.perf_counter() - started
    names = ", ".join(form.name(corpus.options) for corpus in corpora)
    log.info(f"prepared {names}: {counts.kept:,} of {counts.read:,} {form.noun} in {seconds:.1f} s")
    return _open(form, folder, key, tokenizers)


def _open(form: Form, folder: Path, key: str, tokenizers: Tokenizers) -> Dataset:
    dataset = form.open(folder, tokenizers.fingerprint)
    if dataset.about.key != key:
        raise DataError(f"{folder}: holds other data than its name says.")
    return dataset


def _write(
    form: Form,
    folder: Path,
    key: str,
    corpora: list[_Corpus],
    tokenizers: Tokenizers,
    workers: int,
    training: bool,
) -> Counts:
    size = max(tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    columns = form.columns("uint16" if size <= 1 << 16 else "int32", training)
    writer = DatasetWriter(folder, columns)
    counts, warnings = Counts(), []
    try:
        for corpus in corpora:
            marked = form.tokenizers_of(corpus.options, tokenizers)
            encoder = form.encoder(corpus.options, marked, training)
            flaws = [Flaws() for _ in corpus.paths]
            for chunk in ordered_map(encoder, form.chunks(corpus.paths, CHUNK), workers):
                writer.append(chunk)
                counts.add(chunk.counts)
                for found, more in zip(flaws, chunk.flaws, strict=True):
                    found.add(more)
            warnings += [
                line for path, found in zip(corpus.paths, flaws, strict=True) for line in found.warnings(str(path))
            ]
    finally:
        writer.close()
    for line in warnings:
        log.warning(line)
    names = [form.name(corpus.options) for corpus in corpora]
    if counts.kept == 0:
        why = ", ".join(f"{reason} {count:,}" for reason, count in counts.dropped.items())
        raise DataError(f"{', '.join(names)}: 0 of {counts.read:,} {form.noun} left ({why}); {form.remedy}")
    # Of several corpora, which only validation has, the head of the last one: it is used for sampling alone.
    sides = dict(zip(form.texts, (marked.source, marked.target), strict=False))
    writer.finish(
        About(
            key=key,
            tokenizer=tokenizers.fingerprint,
            names=names,
            columns=columns,
            specials={text: tokenizer.specials for text, tokenizer in sides.items()},
            head={text: tokenizer.head_ids for text, tokenizer in sides.items()},
            labels=form.labels,
            counts=counts,
            warnings=warnings,
        )
    )
    return counts
