"""From text to tokenizers and memory-mapped ids, once for equal text, tokenizer and options.

The cache folder holds `tokenizer-KEY/` and `corpus-KEY/`; a key is a SHA-256 over all that the content depends on, so
changed text or options lead to other folders, and nothing stale is ever read.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from transformer_kit.data.corpus import (
    FileFacts,
    Flaws,
    check_parallel,
    corpus_files,
    corpus_name,
    raw_chunks,
)
from transformer_kit.data.dataset import About, DatasetWriter, ParallelDataset, TrainingCorpus
from transformer_kit.data.encoding import Counts, Encoder, TrainingText
from transformer_kit.data.folders import facts_of, key_of, new_folder
from transformer_kit.data.options import (
    NO_CORPUS,
    CorpusOptions,
    DataOptions,
    FilterOptions,
    TextOptions,
    TokenizerOptions,
)
from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.data.tokenizer_training import Lines, train_sentencepiece
from transformer_kit.data.workers import ordered_map
from transformer_kit.errors import ConfigError, DataError
from transformer_kit.logs import get_logger

log = get_logger(__name__)
FORMAT = 1
CHUNK = 4096  # lines that travel to a worker together
TOKENIZER_KEY = "key.txt"


@dataclass(frozen=True)
class Prepared:
    """Everything that training needs of the data.

    Attributes:
        train: the mixture.
        valid: all validation corpora, one behind the other; None when none is given.
        data: the options, with the generated corpora filled in.
    """

    tokenizers: Tokenizers
    train: list[TrainingCorpus]
    valid: ParallelDataset | None
    data: DataOptions
    tokenizer: TokenizerOptions


@dataclass(frozen=True)
class _Corpus:
    options: CorpusOptions
    paths: list[Path]
    facts: list[FileFacts]
    pairs: int


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
    problems += [f"tokenizer.{key}: {message}" for key, message in tokenizer.problems()]
    problems += [NO_CORPUS] if not data.train and data.generate is None else []
    if problems:
        raise ConfigError(problems)
    data = with_generated(data)
    cache = Path(data.cache).expanduser()
    train = [_inspect(corpus, cache) for corpus in data.train]
    valid = [_inspect(corpus, cache) for corpus in data.valid]
    if tokenizers is None:
        tokenizers = find_tokenizers(data, tokenizer, train, cache)
    corpora = [
        TrainingCorpus(_prepare_corpora([corpus], tokenizers, data, tokenizer, data.filter), corpus.options.weight)
        for corpus in train
    ]
    held_out = _prepare_corpora(valid, tokenizers, data, tokenizer, None) if valid else None
    return Prepared(tokenizers, corpora, held_out, data, tokenizer)


def with_generated(data: DataOptions) -> DataOptions:
    """The options with the files of `data.generate` as corpora, written if they are not there yet."""
    if data.generate is None:
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


def find_tokenizers(data: DataOptions, options: TokenizerOptions, train: list[_Corpus], cache: Path) -> Tokenizers:
    """The tokenizers at `options.path`, else those in the cache, else newly trained ones."""
    if options.path is not None:
        return Tokenizers.load(Path(options.path).expanduser())
    tags = sorted({corpus.options.tag for corpus in train if corpus.options.tag is not None})
    choices = {name: value for name, value in asdict(options).items() if name not in ("path", "sampling")}
    choices |= {"kind": options.kind.value, "text": _plain(options.text)}
    texts = [[[fact.sha256 for fact in corpus.facts], corpus.options.prefix] for corpus in train]
    languages = [data.source_language, data.target_language]
    key = key_of([FORMAT, choices, texts, tags, languages])
    folder = cache / f"tokenizer-{key[:16]}"
    if folder.is_dir():
        found = Tokenizers.load(folder)
        if (folder / TOKENIZER_KEY).read_text().split() != [key, found.fingerprint]:
            raise DataError(f"{folder}: holds another tokenizer than was written there; delete it to train anew")
        return found
    started = time.perf_counter()
    rules = [_rule(language, options.text) for language in languages]
    sides: list[list[int]] = [[0, 1]] if options.joint else [[0], [1]]
    models = [
        train_sentencepiece(_training_lines(train, side, rules, options.max_lines, data.workers), options, tags)
        for side in sides
    ]
    made = Tokenizers.of(models, *rules)
    with new_folder(folder) as temporary:
        made.save(temporary)
        (temporary / TOKENIZER_KEY).write_text(f"{key} {made.fingerprint}\n")
    sizes = made.source.vocab_size if made.joint else f"{made.source.vocab_size} and {made.target.vocab_size}"
    log.info(f"trained a {options.kind.value} tokenizer of {sizes} pieces in {time.perf_counter() - started:.1f} s")
    return made


def _plain(text: TextOptions) -> dict[str, object]:
    return asdict(text) | {"unicode": text.unicode.value}


def _rule(language: str, text: TextOptions) -> TextRule:
    return TextRule(language, text.normalize, text.tokenize, text.lowercase)


def _training_lines(
    corpora: list[_Corpus], sides: list[int], rules: list[TextRule], most: int | None, workers: int
) -> Lines:
    total = sum(corpus.pairs for corpus in corpora)
    take = total if most is None else min(most, total)
    if all(rules[side].trivial for side in sides):
        workers = 1  # decoding a line costs less than sending it

    def lines() -> Iterator[str]:
        before = 0
        for corpus in corpora:
            names = [str(path) for path in corpus.paths]
            text = TrainingText(names, corpus.options.prefix or "", rules, sides, before, take, total)
            for chunk in ordered_map(text, raw_chunks(corpus.paths, CHUNK), workers):
                yield from chunk
            before += corpus.pairs

    return lines


def _inspect(corpus: CorpusOptions, cache: Path) -> _Corpus:
    paths = corpus_files(corpus)
    facts = [facts_of(path, cache) for path in paths]
    return _Corpus(corpus, paths, facts, check_parallel(paths, facts))


def _prepare_corpora(
    corpora: list[_Corpus],
    tokenizers: Tokenizers,
    data: DataOptions,
    tokenizer: TokenizerOptions,
    filters: FilterOptions | None,
) -> ParallelDataset:
    normal = tokenizer.sampling.alpha > 0 and filters is not None
    contents = [
        [[fact.sha256 for fact in corpus.facts], corpus.options.tag, corpus.options.prefix] for corpus in corpora
    ]
    key = key_of([FORMAT, contents, tokenizers.fingerprint, filters and asdict(filters), normal])
    folder = Path(data.cache).expanduser() / f"corpus-{key[:16]}"
    if folder.is_dir():
        try:
            return _open(folder, key, tokenizers)
        except DataError as error:
            log.warning(f"{error} Making it again.")
            shutil.rmtree(folder)
    started = time.perf_counter()
    with new_folder(folder) as made:
        counts = _write(made, key, corpora, tokenizers, data.workers, filters, normal)
    seconds = time.perf_counter() - started
    names = ", ".join(corpus_name(corpus.options) for corpus in corpora)
    log.info(f"prepared {names}: {counts.kept:,} of {counts.read:,} pairs in {seconds:.1f} s")
    return _open(folder, key, tokenizers)


def _open(folder: Path, key: str, tokenizers: Tokenizers) -> ParallelDataset:
    dataset = ParallelDataset(folder, tokenizers.fingerprint)
    if dataset.about.key != key:
        raise DataError(f"{folder}: holds other data than its name says.")
    return dataset


def _write(
    folder: Path,
    key: str,
    corpora: list[_Corpus],
    tokenizers: Tokenizers,
    workers: int,
    filters: FilterOptions | None,
    normal: bool,
) -> Counts:
    size = max(tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    dtype = "uint16" if size <= 1 << 16 else "int32"
    writer = DatasetWriter(folder, dtype, normal)
    counts, warnings = Counts(), []
    try:
        for corpus in corpora:
            paths = [str(path) for path in corpus.paths]
            marked = tokenizers.marked(corpus.options.tag, corpus.options.prefix)
            encoder = Encoder(marked, paths, filters, normal)
            flaws = [Flaws() for _ in paths]
            for chunk in ordered_map(encoder, raw_chunks(corpus.paths, CHUNK), workers):
                writer.append(chunk)
                counts.add(chunk.counts)
                for found, more in zip(flaws, chunk.flaws, strict=True):
                    found.add(more)
            warnings += [line for path, found in zip(paths, flaws, strict=True) for line in found.warnings(path)]
    finally:
        writer.close()
    for line in warnings:
        log.warning(line)
    names = [corpus_name(corpus.options) for corpus in corpora]
    if counts.kept == 0:
        why = ", ".join(f"{reason} {count:,}" for reason, count in counts.dropped.items())
        raise DataError(
            f"{', '.join(names)}: 0 of {counts.read:,} pairs left ({why}); "
            "loosen data.filter (min_length, max_length, max_ratio) or check the files"
        )
    writer.finish(About(key, tokenizers.fingerprint, names, marked.source.tag_ids, counts, warnings, dtype, normal))
    return counts
