"""Inflection: what the lexicon's entries look like in an English and in a German sentence.

A filler is anything that stands in a slot of a template. It renders itself in either language for a form that the
template asks for: `{a:acc}` is the accusative of noun phrase a, `{v:{a:person}}` the verb v agreeing with a.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

DEFINITE = {
    "m": {"nom": "der", "acc": "den", "dat": "dem", "gen": "des"},
    "f": {"nom": "die", "acc": "die", "dat": "der", "gen": "der"},
    "n": {"nom": "das", "acc": "das", "dat": "dem", "gen": "des"},
}
INDEFINITE = {  # endings of ein, mein, dein, unser, sein, ihr
    "m": {"nom": "", "acc": "en", "dat": "em", "gen": "es"},
    "f": {"nom": "e", "acc": "e", "dat": "er", "gen": "er"},
    "n": {"nom": "", "acc": "", "dat": "em", "gen": "es"},
}
WEAK = {  # adjective endings after der, die, das
    "m": {"nom": "e", "acc": "en", "dat": "en", "gen": "en"},
    "f": {"nom": "e", "acc": "e", "dat": "en", "gen": "en"},
    "n": {"nom": "e", "acc": "e", "dat": "en", "gen": "en"},
}
MIXED = {  # adjective endings after ein, mein, ...
    "m": {"nom": "er", "acc": "en", "dat": "en", "gen": "en"},
    "f": {"nom": "e", "acc": "e", "dat": "en", "gen": "en"},
    "n": {"nom": "es", "acc": "es", "dat": "en", "gen": "en"},
}
STRONG_PLURAL = {"nom": "e", "acc": "e", "dat": "en"}  # adjective endings after a numeral
RELATIVE = {
    "m": {"nom": "der", "acc": "den", "dat": "dem"},
    "f": {"nom": "die", "acc": "die", "dat": "der"},
    "n": {"nom": "das", "acc": "das", "dat": "dem"},
}
DETERMINERS = {"the": "", "a": "ein", "my": "mein", "your": "dein", "our": "unser", "his": "sein", "her": "ihr"}


class Filler(Protocol):
    """What stands in a slot: the lexemes that it brings along, and its forms in both languages."""

    @property
    def lexemes(self) -> tuple[str, ...]: ...
    def en(self, form: str) -> str: ...
    def de(self, form: str) -> str: ...


@dataclass(frozen=True)
class Word:
    """A filler with listed forms; the form "" is the plain one."""

    lexemes: tuple[str, ...]
    english: Mapping[str, str]
    german: Mapping[str, str]

    def en(self, form: str) -> str:
        return self.english[form]

    def de(self, form: str) -> str:
        return self.german[form]


@dataclass(frozen=True)
class Noun:
    """A noun: English singular and plural; German nominative, genitive and plural; gender m, f or n."""

    english: str
    plural: str
    german: str
    genitive: str
    german_plural: str
    gender: str
    person: bool

    def de(self, case: str) -> str:
        """The German singular; masculines with a genitive in -n (der Bär, des Bären) have it in every oblique case."""
        weak = self.gender == "m" and self.genitive.endswith("n")
        return self.genitive if case == "gen" or (weak and case != "nom") else self.german

    def de_plural(self, case: str) -> str:
        add_n = case == "dat" and not self.german_plural.endswith(("n", "s"))
        return self.german_plural + ("n" if add_n else "")


@dataclass(frozen=True)
class Adjective:
    """An adjective with its comparison in both languages."""

    english: str
    english_comparative: str
    english_superlative: str
    german: str
    comparative: str
    superlative: str

    @property
    def stem(self) -> str:
        """What endings are added to: müde -> müd, teuer -> teur, dunkel -> dunkl."""
        if self.german.endswith("e"):
            return self.german[:-1]
        if self.german.endswith(("auer", "euer", "kel")):
            return self.german[:-2] + self.german[-1]
        return self.german


def article(word: str) -> str:
    """a or an, by the sound that the next word begins with."""
    return "an" if word[0] in "aeiou" and not word.startswith("uni") else "a"


@dataclass(frozen=True)
class NounPhrase:
    """Determiner, perhaps an adjective (or its superlative), and a noun in the singular."""

    determiner: str
    adjective: Adjective | None
    noun: Noun
    superlative: bool = False

    @property
    def lexemes(self) -> tuple[str, ...]:
        return (self.noun.english, *((self.adjective.english,) if self.adjective else ()))

    def en(self, form: str) -> str:
        if form in NP_AGREEMENT_EN:
            return NP_AGREEMENT_EN[form]
        if form == "rel":
            return "who" if self.noun.person else "which"
        words = [self.noun.english]
        if self.adjective:
            words.insert(0, self.adjective.english_superlative if self.superlative else self.adjective.english)
        if form != "bare":
            words.insert(0, article(words[0]) if self.determiner == "a" else self.determiner)
        return " ".join(words)

    def de(self, form: str) -> str:
        if form in NP_AGREEMENT_DE:
            return NP_AGREEMENT_DE[form]
        gender = self.noun.gender
        if form.startswith("rel_"):
            return RELATIVE[gender][form.removeprefix("rel_")]
        definite = self.determiner == "the"
        base = DEFINITE[gender][form] if definite else DETERMINERS[self.determiner] + INDEFINITE[gender][form]
        words = [base, self.noun.de(form)]
        if self.adjective:
            stem = self.adjective.superlative if self.superlative else self.adjective.stem
            words.insert(1, stem + (WEAK if definite else MIXED)[gender][form])
        return " ".join(words)


@dataclass(frozen=True)
class Counted:
    """A numeral from two on, perhaps an adjective, and a noun in the plural."""

    number: tuple[str, str]
    adjective: Adjective | None
    noun: Noun

    @property
    def lexemes(self) -> tuple[str, ...]:
        return (self.number[0], self.noun.english, *((self.adjective.english,) if self.adjective else ()))

    def en(self, form: str) -> str:
        return " ".join([self.number[0], *((self.adjective.english,) if self.adjective else ()), self.noun.plural])

    def de(self, form: str) -> str:
        adjective = (self.adjective.stem + STRONG_PLURAL[form],) if self.adjective else ()
        return " ".join([self.number[1], *adjective, self.noun.de_plural(form)])


# Subjects agree with their verbs through these forms; a noun phrase is a third person.
NP_AGREEMENT_EN = {"person": "s", "do": "does", "be": "is", "was": "was", "have": "has"}
NP_AGREEMENT_DE = {"person": "er", "have": "hat", "be": "ist", "will": "wird", "would": "möchte"}


def pronoun(english: str, german: str, en_agreement: str, de_agreement: str) -> Word:
    """A personal pronoun in the nominative, with the forms that verbs take beside it.

    Args:
        en_agreement: person, do, be, was, have.
        de_agreement: person, haben, sein, werden, möchte.
    """
    en_forms = dict(zip(("person", "do", "be", "was", "have"), en_agreement.split(), strict=True))
    de_forms = dict(zip(("person", "have", "be", "will", "would"), de_agreement.split(), strict=True))
    return Word((), {"": english, **en_forms}, {"nom": german, **de_forms})


def verb(base: str, past: str, participle: str, german: str, third: str, german_participle: str, case: str) -> Word:
    """A verb in all the forms that templates use.

    Args:
        base, past, participle: English; phrasal verbs are joined by "_": look_for.
        german: the infinitive, a separable prefix cut off by "|": ein|laden.
        third: third person singular without the prefix: lädt.
        case: what it governs: acc, dat, or preposition and case: auf+acc; "-" for nothing.
    """
    prefix, _, infinitive = german.rpartition("|")
    stem = infinitive[:-1] if infinitive.endswith(("eln", "ern")) else infinitive[:-2]
    first = stem[:-2] + "le" if infinitive.endswith("eln") else stem + "e"
    bare = third[:-1]
    second = third if bare.endswith(("s", "ß", "z")) else bare + "st"
    preposition, _, governed = case.rpartition("+")
    finite = {"ich": first, "du": second, "er": third, "wir": infinitive}
    head, *rest = base.split("_")
    sibilant = head.endswith(("s", "sh", "ch", "x", "z", "o"))
    singular = (
        head + "es" if sibilant else head[:-1] + "ies" if head[-1] == "y" and head[-2] not in "aeiou" else head + "s"
    )
    return Word(
        (base,),
        {
            "base": base.replace("_", " "),
            "s": " ".join([singular, *rest]),
            "past": past.replace("_", " "),
            "part": participle.replace("_", " "),
        },
        {
            **finite,
            **{f"end_{person}": prefix + form for person, form in finite.items()},
            "imp": bare,  # right for every verb used so: gib, zeig, wirf
            "pre": prefix,
            "inf": prefix + infinitive,
            "zu": f"{prefix}zu{infinitive}" if prefix else f"zu {infinitive}",
            "part": german_participle,
            "prep": preposition,
            "case": governed,
        },
    )
