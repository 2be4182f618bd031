"""The demo corpus: correct sentences, a split that tests composition, and the same text from the same seed."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
import sacrebleu

from transformer_kit.data import synthetic
from transformer_kit.data.phrases import lexicon, numbers
from transformer_kit.data.phrases.slots import BEINGS, CHARACTER, OBJECTS, SLOTS, Chance, one_of
from transformer_kit.data.phrases.templates import Pair, Template, templates
from transformer_kit.data.phrases.words import Counted, NounPhrase, Word

SIZES = {"train": 18_000, "valid": 400, "test": 500}


@pytest.fixture(scope="module")
def demo() -> synthetic.DemoCorpus:
    return synthetic.corpus(1)


def words(text: str) -> list[str]:
    return re.findall(r"[\w'-]+|[.,?]", text.lower())


def noun(english: str) -> NounPhrase:
    found = next(entry for entry in (*BEINGS, *OBJECTS) if entry.english == english)
    return NounPhrase("the", None, found)


def with_words(english: str, adjective: str, determiner: str) -> NounPhrase:
    chosen = next(entry for entry in CHARACTER if entry.english == adjective)
    return NounPhrase(determiner, chosen, noun(english).noun)


def all_verbs() -> dict[str, Word]:
    tables = [lexicon.SOCIAL, lexicon.DATIVE, lexicon.PREPOSITIONAL, lexicon.ALONE]
    tables += [lexicon.HANDLE, lexicon.GIVE, lexicon.EAT]
    return {word.lexemes[0]: word for table in tables for word in lexicon.verbs(table)}


# ---------------------------------------------------------------------------------------------------------- the split


def test_sizes_and_richness(demo: synthetic.DemoCorpus) -> None:
    assert {name: len(getattr(demo, name)) for name in SIZES} == SIZES
    assert len(templates()) >= 40
    for side in ("english", "german"):
        types = {word for pair in demo.train for word in words(getattr(pair, side)) if word[0].isalpha()}
        assert len(types) >= 300
        lengths = [len(getattr(pair, side).split()) for pair in demo.train]
        assert min(lengths) >= 3
        assert max(lengths) <= 19


def test_every_template_is_drawn(demo: synthetic.DemoCorpus) -> None:
    chance = Chance(5)
    for template in templates():
        pair = template.draw(chance)
        assert pair.english[-1] in ".?"
        assert pair.english[-1] == pair.german[-1]
        for text in (pair.english, pair.german):
            assert not re.search(r"[{}]| [.,?]|  |None", text)
            assert text[0].isupper()


def test_no_sentence_of_either_language_occurs_twice(demo: synthetic.DemoCorpus) -> None:
    pairs = demo.train + demo.valid + demo.test
    assert len({pair.english for pair in pairs}) == len(pairs)
    assert len({pair.german for pair in pairs}) == len(pairs)


def test_each_held_out_line_holds_a_pair_never_seen_together_of_fillers_seen_alone(demo: synthetic.DemoCorpus) -> None:
    together = {frozenset(two) for pair in demo.train for two in combinations(pair.lexemes, 2)}
    alone = {lexeme for pair in demo.train for lexeme in pair.lexemes}
    english = {word for pair in demo.train for word in pair.english.split()}
    german = {word for pair in demo.train for word in pair.german.split()}
    for pair in demo.valid + demo.test:
        assert any(frozenset(two) not in together for two in combinations(pair.lexemes, 2)), pair.english
        assert alone.issuperset(pair.lexemes)
        assert english.issuperset(pair.english.split())
        assert german.issuperset(pair.german.split())


def test_word_order_decides_the_translation(demo: synthetic.DemoCorpus) -> None:
    """Most lines can be rearranged into another sentence of the grammar, so a bag of words does not suffice."""
    symmetric = 0
    for pair in demo.test:
        beings = [
            entry for entry in BEINGS if re.search(rf"\b({entry.english}|{entry.plural})\b", pair.english.lower())
        ]
        things = [
            entry for entry in OBJECTS if re.search(rf"\b({entry.english}|{entry.plural})\b", pair.english.lower())
        ]
        symmetric += len(beings) > 1 or len(things) > 1
    assert symmetric > 0.6 * len(demo.test)


def nearest_target(text: str, train: list[Pair], bags: list[Counter[str]], index: dict[str, list[int]]) -> str:
    """The target of the training source with the highest F1 of word overlap."""
    bag, shared = Counter(words(text)), Counter[int]()
    for word, count in bag.items():
        for i in index[word]:
            shared[i] += min(count, bags[i][word])
    size = bag.total()
    return train[max(shared, key=lambda i: shared[i] / (size + bags[i].total()))].german


def test_the_nearest_training_sentence_translates_badly(demo: synthetic.DemoCorpus) -> None:
    bags = [Counter(words(pair.english)) for pair in demo.train]
    index: dict[str, list[int]] = defaultdict(list)
    for i, bag in enumerate(bags):
        for word in bag:
            index[word].append(i)
    sample = demo.test[::11]
    found = [nearest_target(pair.english, demo.train, bags, index) for pair in sample]
    assert sacrebleu.corpus_bleu(found, [[pair.german for pair in sample]]).score < 40


def test_files_are_the_same_everywhere(
    demo: synthetic.DemoCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic, "corpus", {1: demo}.__getitem__)  # drawn already
    synthetic.generate(tmp_path / "new" / "folder", seed=1)
    written = sorted((tmp_path / "new" / "folder").iterdir())
    assert [path.name for path in written] == ["test.de", "test.en", "train.de", "train.en", "valid.de", "valid.en"]
    assert all(path.read_bytes().count(b"\n") == SIZES[path.stem] for path in written)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in written)).hexdigest()
    assert digest == "88fb3b0613b10e265fb03a7f384088855edd022e907fcb0d8a840ccbc7a6a9a8"


def test_another_seed_writes_other_sentences() -> None:
    small = {"train": 300, "valid": 0, "test": 0}
    first, again, other = (synthetic.corpus(seed, small).train for seed in (3, 3, 5))
    assert first == again
    assert len({pair.english for pair in first} & {pair.english for pair in other}) < 10


# -------------------------------------------------------------------------------------------------------- the grammar


def test_articles_and_adjectives_agree() -> None:
    cases = ("nom", "acc", "dat", "gen")
    expected = {
        ("king", "old", "the"): ("der alte König", "den alten König", "dem alten König", "des alten Königs"),
        ("bear", "tired", "a"): ("ein müder Bär", "einen müden Bären", "einem müden Bären", "eines müden Bären"),
        ("queen", "old", "the"): ("die alte Königin", "die alte Königin", "der alten Königin", "der alten Königin"),
        ("goose", "wild", "my"): ("meine wilde Gans", "meine wilde Gans", "meiner wilden Gans", "meiner wilden Gans"),
        ("child", "small", "the"): ("das kleine Kind", "das kleine Kind", "dem kleinen Kind", "des kleinen Kindes"),
        ("unicorn", "shy", "our"): (
            *("unser schüchternes Einhorn", "unser schüchternes Einhorn"),
            *("unserem schüchternen Einhorn", "unseres schüchternen Einhorns"),
        ),
    }
    for (name, adjective, determiner), forms in expected.items():
        assert tuple(with_words(name, adjective, determiner).de(case) for case in cases) == forms


def test_plurals() -> None:
    seven = numbers.cardinal(7)
    for english, nominative, dative in (
        ("hat", "sieben Hüte", "sieben Hüten"),
        ("clock", "sieben Uhren", "sieben Uhren"),
        ("mirror", "sieben Spiegel", "sieben Spiegeln"),
        ("book", "sieben Bücher", "sieben Büchern"),
    ):
        phrase = Counted(seven, None, noun(english).noun)
        assert (phrase.de("nom"), phrase.de("acc"), phrase.de("dat")) == (nominative, nominative, dative)


def test_english_articles() -> None:
    found = [NounPhrase("a", None, noun(name).noun).en("") for name in ("owl", "unicorn", "uncle", "dog")]
    assert found == ["an owl", "a unicorn", "an uncle", "a dog"]
    assert with_words("dog", "old", "a").en("") == "an old dog"
    assert with_words("owl", "small", "a").en("") == "a small owl"


@pytest.mark.parametrize(
    ("english", "third", "forms"),
    [
        ("see", "sees", "sehe siehst sieht sehen"),
        ("find", "finds", "finde findest findet finden"),
        ("kiss", "kisses", "küsse küsst küsst küssen"),
        ("tickle", "tickles", "kitzle kitzelst kitzelt kitzeln"),
        ("admire", "admires", "bewundere bewunderst bewundert bewundern"),
        ("carry", "carries", "trage trägst trägt tragen"),
        ("annoy", "annoys", "ärgere ärgerst ärgert ärgern"),
        ("dance", "dances", "tanze tanzt tanzt tanzen"),
        ("eat", "eats", "esse isst isst essen"),
        ("smile", "smiles", "lächle lächelst lächelt lächeln"),
        ("look_after", "looks after", "passe passt passt passen"),
        ("watch", "watches", "beobachte beobachtest beobachtet beobachten"),
    ],
)
def test_verbs_agree(english: str, third: str, forms: str) -> None:
    word = all_verbs()[english]
    assert word.en("s") == third
    assert " ".join(word.de(person) for person in ("ich", "du", "er", "wir")) == forms


def test_separable_verbs() -> None:
    invite = all_verbs()["invite"]
    found = [invite.de(form) for form in ("er", "pre", "end_er", "inf", "zu", "part")]
    assert found == ["lädt", "ein", "einlädt", "einladen", "einzuladen", "eingeladen"]
    assert all_verbs()["see"].de("zu") == "zu sehen"


def test_imperatives() -> None:
    found = [all_verbs()[name].de("imp") for name in ("give", "show", "throw", "offer", "promise")]
    assert found == ["gib", "zeig", "wirf", "biete", "versprich"]


@pytest.mark.parametrize(
    ("n", "english", "german"),
    [
        (2, "two", "zwei"),
        (17, "seventeen", "siebzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (76, "seventy-six", "sechsundsiebzig"),
        (99, "ninety-nine", "neunundneunzig"),
    ],
)
def test_cardinals(n: int, english: str, german: str) -> None:
    assert numbers.cardinal(n) == (english, german)


@pytest.mark.parametrize(
    ("n", "english", "german"),
    [
        (1, "first", "erst"),
        (3, "third", "dritt"),
        (7, "seventh", "siebt"),
        (8, "eighth", "acht"),
        (12, "twelfth", "zwölft"),
        (20, "twentieth", "zwanzigst"),
        (21, "twenty-first", "einundzwanzigst"),
        (30, "thirtieth", "dreißigst"),
    ],
)
def test_ordinals(n: int, english: str, german: str) -> None:
    assert numbers.ordinal(n) == (english, german)


@pytest.mark.parametrize(
    ("hour", "minute", "english", "german"),
    [
        (1, "o'clock", "one o'clock", "ein Uhr"),
        (3, "half past", "half past three", "halb vier"),
        (12, "half past", "half past twelve", "halb eins"),
        (1, "quarter to", "quarter to one", "Viertel vor eins"),
        (4, "twenty-five past", "twenty-five past four", "fünf vor halb fünf"),
        (4, "twenty-five to", "twenty-five to four", "fünf nach halb vier"),
        (12, "twenty-five past", "twenty-five past twelve", "fünf vor halb eins"),
        (9, "twenty past", "twenty past nine", "zwanzig nach neun"),
    ],
)
def test_clock_times(hour: int, minute: str, english: str, german: str) -> None:
    index = -1 if minute == "o'clock" else [name for name, _, _ in numbers.MINUTES].index(minute)
    word = numbers.clock(hour, index)
    assert (word.en(""), word.de("")) == (english, german)


def test_dates_and_prices() -> None:
    assert numbers.date(23, 2).de("") == "dreiundzwanzigsten März"
    assert numbers.date(3, 4).en("") == "the third of May"
    assert numbers.price(2, 50).de("") == "zwei Euro fünfzig"
    assert numbers.price(21, 5).en("") == "twenty-one euros and five cents"


def spoken(texts: list[str]) -> Iterator[tuple[str, str]]:
    """Sentences whose fillers are fixed: the slots of each pattern take the words given."""
    verbs = all_verbs()
    pronouns = {word.en(""): word for word in lexicon.pronouns()}
    for template in templates():
        for text in texts:
            english, *named = text.split(" | ")
            if template.english != english:
                continue
            fillers = dict(item.split("=") for item in named[0].split(", "))
            chosen = {k: pronouns.get(v) or verbs.get(v) or noun(v) for k, v in fillers.items()}
            fixed = Template(template.english, template.german, {k: one_of([w]) for k, w in chosen.items()})
            pair = fixed.draw(Chance(0))
            yield pair.english, pair.german


def test_verb_order_and_contractions() -> None:
    patterns = [
        "{a} {v:{a:person}} {b}. | a=I, v=invite, b=bear",
        "{a} {i:past} because {b} {v:past} {c}. | a=we, i=sleep, b=queen, v=wait_for, c=dog",
        "{a} tries to {v:base} {b}. | a=fox, v=call, b=witch",
        "{a} that {b} {v:s} {i:s}. | a=dog, b=cat, v=dream_of, i=snore",
        "Before {a} {i:{a:person}}, {b} {v:s} {c}. | a=you, i=tidy_up, b=cow, v=dream_of, c=horse",
        "Please {v:base} {b} {x}. | v=give, b=child, x=ball",
    ]
    found = dict(spoken(patterns))
    assert found == {
        "I invite the bear.": "Ich lade den Bären ein.",
        "We slept because the queen waited for the dog.": (
            "Wir haben geschlafen, weil die Königin auf den Hund gewartet hat."
        ),
        "The fox tries to call the witch.": "Der Fuchs versucht, die Hexe anzurufen.",
        "The dog that the cat dreams of snores.": "Der Hund, von dem die Katze träumt, schnarcht.",
        "Before you tidy up, the cow dreams of the horse.": "Bevor du aufräumst, träumt die Kuh vom Pferd.",
        "Please give the child the ball.": "Gib dem Kind bitte den Ball.",
    }


def test_every_slot_is_used() -> None:
    used = {id(slot) for template in templates() for slot in template.slots.values()}
    assert [name for name, slot in SLOTS.items() if id(slot) not in used] == []


def test_no_two_entries_share_a_german_word() -> None:
    """Each English word has a German word of its own, so that there is one right target."""
    germans = [entry.german for entry in (*BEINGS, *OBJECTS)]
    assert len(set(germans)) == len(germans)
    adjectives = lexicon.adjectives(lexicon.CHARACTER + lexicon.QUALITY.lstrip() + lexicon.TASTE.lstrip())
    assert len({entry.german for entry in adjectives}) == len(adjectives)
