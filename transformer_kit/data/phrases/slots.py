"""What may stand in a slot: each function draws one filler from a source of chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from transformer_kit.data.phrases import lexicon, numbers
from transformer_kit.data.phrases.words import Adjective, Counted, Filler, Noun, NounPhrase, Word

T = TypeVar("T")


class Chance:
    """Draws that depend on nothing but the seed: built on `Random.random`, which Python promises never to change."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, n: int) -> int:
        return int(self._random() * n)

    def between(self, low: int, high: int) -> int:
        """low <= n <= high."""
        return low + self.below(high - low + 1)

    def choice(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def happens(self, probability: float) -> bool:
        return self._random() < probability


Slot = Callable[[Chance], Filler]

PEOPLE = lexicon.nouns(lexicon.PEOPLE, person=True)
BEINGS = PEOPLE + lexicon.nouns(lexicon.ANIMALS, person=False)
OBJECTS = lexicon.nouns(lexicon.THINGS, person=False)
FOODS = lexicon.nouns(lexicon.FOOD, person=False)
CHARACTER = lexicon.adjectives(lexicon.CHARACTER)
QUALITY = lexicon.adjectives(lexicon.QUALITY)
TASTE = lexicon.adjectives(lexicon.TASTE)
PRONOUNS = lexicon.pronouns()
SPANS = lexicon.words(lexicon.SPANS)
DAYS = lexicon.pairs(lexicon.DAYS)
DAY_PARTS = lexicon.pairs(lexicon.DAY_PARTS)

THE = ("the",)
ANY = ("the", "the", "the", "the", "a", "a", "my", "your", "our", "his", "her")
A = ("a",)


def one_of(words: Sequence[Filler]) -> Slot:
    return lambda chance: chance.choice(words)


def phrase(nouns: Sequence[Noun], adjectives: Sequence[Adjective], determiners: Sequence[str], often: float) -> Slot:
    """A noun phrase in the singular, with an adjective as often as `often` says (0..1)."""

    def draw(chance: Chance) -> Filler:
        adjective = chance.choice(adjectives) if chance.happens(often) else None
        return NounPhrase(chance.choice(determiners), adjective, chance.choice(nouns))

    return draw


def superlative(nouns: Sequence[Noun], adjectives: Sequence[Adjective]) -> Slot:
    return lambda chance: NounPhrase("the", chance.choice(adjectives), chance.choice(nouns), superlative=True)


def counted(nouns: Sequence[Noun], adjectives: Sequence[Adjective], often: float) -> Slot:
    """Two to twelve of something."""

    def draw(chance: Chance) -> Filler:
        adjective = chance.choice(adjectives) if chance.happens(often) else None
        return Counted(numbers.cardinal(chance.between(2, 12)), adjective, chance.choice(nouns))

    return draw


def comparison(adjectives: Sequence[Adjective]) -> Slot:
    """An adjective that is said of something: old, older."""
    entries = [
        Word(
            (a.english,),
            {"": a.english, "more": a.english_comparative},
            {"": a.german, "more": a.comparative},
        )
        for a in adjectives
    ]
    return one_of(entries)


def number(low: int, high: int) -> Slot:
    return lambda chance: numbers.number(chance.between(low, high))


def ordinal(low: int, high: int) -> Slot:
    return lambda chance: numbers.ordinal_word(chance.between(low, high))


def digits(low: int, high: int) -> Slot:
    """A number in figures."""

    def draw(chance: Chance) -> Filler:
        text = str(chance.between(low, high))
        return Word((text,), {"": text}, {"": text})

    return draw


def clock(chance: Chance) -> Filler:
    return numbers.clock(chance.between(1, 12), chance.between(-1, len(numbers.MINUTES) - 1))


def date(chance: Chance) -> Filler:
    return numbers.date(chance.between(1, 30), chance.choice((0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)))


def price(chance: Chance) -> Filler:
    return numbers.price(chance.between(2, 40), 5 * chance.between(2, 19))


def joined(first: Sequence[Word], english: str, second: Sequence[Word]) -> Slot:
    """A number, a unit and what it measures: three cups of tea, drei Tassen Tee."""

    def draw(chance: Chance) -> Filler:
        n, unit, what = numbers.number(chance.between(2, 9)), chance.choice(first), chance.choice(second)
        return Word(
            (*n.lexemes, *unit.lexemes, *what.lexemes),
            {"": f"{n.en('')} {unit.en('')} {english} {what.en('')}"},
            {"": f"{n.de('')} {unit.de('')} {what.de('')}"},
        )

    return draw


def span(chance: Chance) -> Filler:
    """A length of time: three weeks, drei Wochen (dative)."""
    n, unit = numbers.number(chance.between(2, 12)), chance.choice(SPANS)
    lexemes = (*n.lexemes, *unit.lexemes)
    return Word(lexemes, {"": f"{n.en('')} {unit.en('')}"}, {"": f"{n.de('')} {unit.de('')}"})


def day(chance: Chance) -> Filler:
    """A day or a part of it: "" on Monday morning, every: every Monday, s: on Mondays."""
    english, german = chance.choice(DAYS)
    part_en, part_de = chance.choice(DAY_PARTS) if chance.happens(0.4) else ("", "")
    full_en = f"{english} {part_en}".strip()
    full_de = german + part_de
    return Word(
        tuple(full_en.split()),
        {"": f"on {full_en}", "every": f"every {full_en}", "s": f"on {full_en}s"},
        {"": f"am {full_de}", "every": f"jeden {full_de}", "s": f"{full_de.lower()}s"},
    )


BEING = phrase(BEINGS, CHARACTER, ANY, 0.5)
PAST = lexicon.words(lexicon.PAST_TIMES)
NEXT = lexicon.words(lexicon.NEXT_TIMES)
SOCIAL = lexicon.verbs(lexicon.SOCIAL)  # accusative alone, so that each has a passive


def past_time(chance: Chance) -> Filler:
    """When something happened: yesterday, on Monday evening, in May, two weeks ago."""
    kind = chance.below(4)
    if kind == 0:
        return day(chance)
    if kind == 1:
        length = span(chance)
        return Word(length.lexemes, {"": f"{length.en('')} ago"}, {"": f"vor {length.de('')}"})
    if kind == 2:
        english, german = chance.choice(numbers.MONTHS)
        return Word((english,), {"": f"in {english}"}, {"": f"im {german}"})
    return chance.choice(PAST)


def next_time(chance: Chance) -> Filler:
    """When something will happen: tomorrow, in three weeks, at half past three."""
    kind = chance.below(4)
    if kind == 0:
        return day(chance)
    if kind == 1:
        length = span(chance)
        return Word(length.lexemes, {"": f"in {length.en('')}"}, {"": f"in {length.de('')}"})
    if kind == 2:
        time = clock(chance)
        return Word(time.lexemes, {"": f"at {time.en('')}"}, {"": f"um {time.de('')}"})
    return chance.choice(NEXT)


def subject(chance: Chance) -> Filler:
    """Who does something: a pronoun or a being."""
    return chance.choice(PRONOUNS) if chance.happens(0.4) else BEING(chance)


def plural_food() -> list[Word]:
    return [Word((noun.english,), {"": noun.plural}, {"": noun.german_plural}) for noun in FOODS]


SLOTS: dict[str, Slot] = {
    "subject": subject,
    "being": BEING,
    "the_being": phrase(BEINGS, CHARACTER, THE, 0.5),
    "plain": phrase(BEINGS, CHARACTER, THE, 0.0),
    "person": phrase(PEOPLE, CHARACTER, ANY, 0.3),
    "best_being": superlative(BEINGS, CHARACTER),
    "thing": phrase(OBJECTS, QUALITY, ANY, 0.6),
    "a_thing": phrase(OBJECTS, QUALITY, A, 0.8),
    "the_thing": phrase(OBJECTS, QUALITY, THE, 0.5),
    "plain_thing": phrase(OBJECTS, QUALITY, THE, 0.0),
    "best_thing": superlative(OBJECTS, QUALITY),
    "some_things": counted(OBJECTS, QUALITY, 0.5),
    "some_food": counted(FOODS, TASTE, 0.4),
    "drink": joined(lexicon.words(lexicon.UNITS), "of", lexicon.words(lexicon.DRINKS)),
    "groceries": joined(lexicon.words(lexicon.BOXES), "of", plural_food()),
    "character_is": comparison(CHARACTER),
    "quality_is": comparison(QUALITY),
    # The verbs that govern a dative or a preposition are fewer, and so drawn more often.
    "act": one_of(SOCIAL),
    "towards": one_of(SOCIAL + lexicon.verbs(lexicon.DATIVE) * 2 + lexicon.verbs(lexicon.PREPOSITIONAL) * 2),
    "alone": one_of(lexicon.verbs(lexicon.ALONE)),
    "handle": one_of(lexicon.verbs(lexicon.HANDLE)),
    "give": one_of(lexicon.verbs(lexicon.GIVE)),
    "eat": one_of(lexicon.verbs(lexicon.EAT)),
    "modal": one_of(lexicon.modals()),
    "question": one_of(lexicon.words(lexicon.QUESTIONS)),
    "thought": one_of(lexicon.words(lexicon.THOUGHTS)),
    "place": one_of(lexicon.places()),
    "position": one_of(lexicon.words(lexicon.POSITIONS)),
    "city": one_of(lexicon.words(lexicon.CITIES)),
    "vehicle": one_of(lexicon.words(lexicon.VEHICLES)),
    "day": day,
    "past_time": past_time,
    "next_time": next_time,
    "span": span,
    "clock": clock,
    "date": date,
    "price": price,
    "age": number(2, 99),
    "teens": number(2, 19),
    "twenties": number(20, 99),
    "warmth": number(20, 39),
    "floor": ordinal(1, 31),
    "train_number": digits(10, 99),
    "platform": digits(1, 9),
}
