"""The sentence patterns: an English side, a German side, and what stands in their slots.

`{a}` is a slot, `{a:acc}` a form of its filler, `{v:{a:person}}` the form of v that agrees with a. Blanks left by empty
forms are closed, and the first letter is made a capital.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from transformer_kit.data.phrases.slots import SLOTS, Chance, Slot
from transformer_kit.data.phrases.words import Filler

PATTERNS = """
# Who does what to whom.
{a} {v:{a:person}} {b}.
{a:nom} {v:{a:person}} {v:prep} {b:{v:case}} {v:pre}.
a=subject v=towards b=being

{a} {v:past} {b} {t}.
{a:nom} {a:have} {t} {v:prep} {b:{v:case}} {v:part}.
a=subject v=towards b=being t=past_time

{a} {m} {v:base} {b} {t}.
{a:nom} {m:{a:person}} {t} {v:prep} {b:{v:case}} {v:inf}.
a=subject v=towards b=being m=modal t=next_time

In {n} {a} will {v:base} {b}.
In {n} {a:will} {a:nom} {v:prep} {b:{v:case}} {v:inf}.
a=subject v=towards b=being n=span

{t:every} {a} {v:{a:person}} {b}.
{t:every} {v:{a:person}} {a:nom} {v:prep} {b:{v:case}} {v:pre}.
a=subject v=towards b=being t=day

{t} {a} {v:past} {b} {p:at}.
{t} {a:have} {a:nom} {v:prep} {b:{v:case}} {p:at} {v:part}.
a=subject v=towards b=being t=past_time p=place

{a} is {v:part} by {b}.
{a:nom} wird von {b:dat} {v:part}.
a=being v=act b=being

{a} was {v:part} by {b} {t}.
{a:nom} wurde {t} von {b:dat} {v:part}.
a=being v=act b=being t=past_time

{a} tries to {v:base} {b}.
{a:nom} versucht, {v:prep} {b:{v:case}} {v:zu}.
a=being v=towards b=being

It is forbidden to {v:base} {b} {p:at}.
Es ist verboten, {v:prep} {b:{v:case}} {p:at} {v:zu}.
v=towards b=being p=place

Neither {a} nor {b} wants to {v:base} {c}.
Weder {a:nom} noch {b:nom} will {v:prep} {c:{v:case}} {v:inf}.
a=being b=being c=being v=towards

Not {a} but {b} {v:past} {c}.
Nicht {a:nom}, sondern {b:nom} hat {v:prep} {c:{v:case}} {v:part}.
a=being b=being c=being v=towards

# Questions.
{q} {a:do} {a} {v:base} {b}?
{q} {v:{a:person}} {a:nom} {v:prep} {b:{v:case}} {v:pre}?
a=subject v=towards b=being q=question

Did {a} {v:base} {b} {t}?
{a:have} {a:nom} {t} {v:prep} {b:{v:case}} {v:part}?
a=subject v=towards b=being t=past_time

Who gave {a} {x} and {b} {y}?
Wer hat {a:dat} {x:acc} und {b:dat} {y:acc} gegeben?
a=being x=a_thing b=being y=a_thing

# Subordinate clauses, with the verb at their end.
{a} {i:s} because {b} {v:s} {c}.
{a:nom} {i:er} {i:pre}, weil {b:nom} {v:prep} {c:{v:case}} {v:end_er}.
a=the_being i=alone b=being v=towards c=being

{a} {i:past} because {b} {v:past} {c}.
{a:nom} {a:have} {i:part}, weil {b:nom} {v:prep} {c:{v:case}} {v:part} hat.
a=subject i=alone b=being v=towards c=being

{a} {w} that {b} will {v:base} {c} {t}.
{a:nom} {w}, dass {b:nom} {t} {v:prep} {c:{v:case}} {v:end_er}.
a=person w=thought b=plain v=towards c=being t=next_time

When {a} {i:s}, {b} {j:s}.
Wenn {a:nom} {i:end_er}, {j:er} {b:nom} {j:pre}.
a=being i=alone b=being j=alone

Before {a} {i:{a:person}}, {b} {v:s} {c}.
Bevor {a:nom} {i:end_{a:person}}, {v:er} {b:nom} {v:prep} {c:{v:case}} {v:pre}.
a=subject i=alone b=being v=towards c=being

Although {a} is {e}, {b} has never {i:part}.
Obwohl {a:nom} {e} ist, hat {b:nom} nie {i:part}.
a=plain e=character_is b=being i=alone

{a} asks whether {b} {v:past} {c}.
{a:nom} fragt, ob {b:nom} {v:prep} {c:{v:case}} {v:part} hat.
a=being b=being v=towards c=being

{a}, {a:rel} {v:s} {b}, is {e}.
{a:nom}, {a:rel_nom} {v:prep} {b:{v:case}} {v:end_er}, ist {e}.
a=the_being v=towards b=being e=character_is

Whoever {v:s} {b} must {i:base}.
Wer {v:prep} {b:{v:case}} {v:end_er}, muss {i:inf}.
v=towards b=being i=alone

{a} that {b} {v:s} {i:s}.
{a:nom}, {v:prep} {a:rel_{v:case}} {b:nom} {v:end_er}, {i:er} {i:pre}.
a=the_being b=being v=towards i=alone

# Giving, buying, losing.
{a} {v:{a:person}} {b} {x}.
{a:nom} {v:{a:person}} {b:dat} {x:acc} {v:pre}.
a=subject v=give b=being x=a_thing

{t} {a} {v:past} {b} {x}.
{t} {a:have} {a:nom} {b:dat} {x:acc} {v:part}.
t=past_time a=subject v=give b=being x=a_thing

Please {v:base} {b} {x}.
{v:imp} {b:dat} bitte {x:acc} {v:pre}.
v=give b=being x=a_thing

{a} {v:past} {x} {t}.
{a:nom} {a:have} {t} {x:acc} {v:part}.
a=subject v=handle x=thing t=past_time

{a} {m} {v:base} {x} and {y}.
{a:nom} {m:{a:person}} {x:acc} und {y:acc} {v:inf}.
a=subject m=modal v=handle x=thing y=thing

Either {a} or {b} {v:past} {x}.
Entweder hat {a:nom} oder {b:nom} {x:acc} {v:part}.
a=being b=being v=handle x=thing

{a} {v:past} {x} for {b} and {y} for {c}.
{a:nom} {a:have} {x:acc} für {b:acc} und {y:acc} für {c:acc} {v:part}.
a=subject v=handle x=a_thing b=plain y=a_thing c=plain

# Food, quantities and prices.
{a} {v:past} {x}, {y} and {z}.
{a:nom} {a:have} {x:acc}, {y:acc} und {z:acc} {v:part}.
a=subject v=eat x=some_food y=some_food z=some_food

{a} would like {x} and {y}.
{a:nom} {a:would} {x} und {y}.
a=subject x=drink y=groceries

{a} would like {x} and {y}, please.
{a:nom} {a:would} bitte {x} und {y}.
a=subject x=drink y=drink

{x} cost as much as {y}.
{x:nom} kosten so viel wie {y:nom}.
x=some_food y=some_things

{x} costs {n} euros, but {y} costs only {m}.
{x:nom} kostet {n} Euro, aber {y:nom} kostet nur {m}.
x=the_thing n=twenties y=the_thing m=teens

{x} cost {p}.
{x:nom} kosten {p}.
x=some_food p=price

{a} sold {x} for {p}.
{a:nom} {a:have} {x:acc} für {p} verkauft.
a=subject x=thing p=price

There are {x} and {y} {p:at}.
{p:at} gibt es {x:acc} und {y:acc}.
x=some_things y=some_food p=place

# Clock times, days and dates.
It is {c}, and {a} still {a:have} to {v:base} {x}.
Es ist {c}, und {a:nom} muss noch {x:acc} {v:inf}.
c=clock a=being v=handle x=thing

The train from {a} to {b} leaves at {c}.
Der Zug von {a} nach {b} fährt um {c} ab.
a=city b=city c=clock

Train {n} to {a} leaves {b} from platform {m} at {c}.
Zug {n} nach {a} fährt um {c} von Gleis {m} in {b} ab.
n=train_number a=city b=city m=platform c=clock

{t} {a} travels from {b} to {c} by {v}.
{t} fährt {a:nom} mit {v} von {b} nach {c}.
t=day a=being b=city c=city v=vehicle

{a} is going {p:to} by {v} {t}.
{a:nom} fährt {t} mit {v} {p:to}.
a=being p=place v=vehicle t=next_time

{p} is open from {c} until {d} {t:s}.
{p} ist {t:s} von {c} bis {d} geöffnet.
p=place c=clock d=clock t=day

{a}'s birthday is on {d}, not on {e}.
Der Geburtstag {a:gen} ist am {d}, nicht am {e}.
a=being d=date e=date

{p} is closed from {d} until {e}.
{p} ist vom {d} bis zum {e} geschlossen.
p=place d=date e=date

On {d} it rained in {a} and snowed in {b}.
Am {d} hat es in {a} geregnet und in {b} geschneit.
d=date a=city b=city

{a} has lived in {c} for {n}, {b} in {d} for {m}.
{a:nom} wohnt seit {n} in {c}, {b:nom} seit {m} in {d}.
a=being c=city n=span b=being d=city m=span

# Comparing and counting.
{a} {a:be} {e:more} than {b}.
{a:nom} {a:be} {e:more} als {b:nom}.
a=subject e=character_is b=being

{a} is as {e} as {b}, but not as {f}.
{a:nom} ist so {e} wie {b:nom}, aber nicht so {f}.
a=being e=character_is b=being f=character_is

{a}'s {x:bare} is {e:more} than {b}'s {y:bare}.
{x:nom} {a:gen} ist {e:more} als {y:nom} {b:gen}.
a=the_being x=plain_thing e=quality_is b=the_being y=plain_thing

{a} {a:have} {x}, but {b} has {y}.
{a:nom} {a:have} {x:acc}, aber {b:nom} hat {y:acc}.
a=subject x=a_thing b=being y=best_thing

{a} {p:at} {v:past} {b}.
{a:nom} {p:at} hat {v:prep} {b:{v:case}} {v:part}.
a=best_being p=place v=towards b=being

{a} is {n} years old, and {b} is {m}.
{a:nom} ist {n} Jahre alt, und {b:nom} ist {m}.
a=being n=age b=being m=age

In {a} it is {n} degrees, in {b} only {m}.
In {a} sind es {n} Grad, in {b} nur {m}.
a=city n=warmth b=city m=teens

{a} lives on the {n} floor, {b} on the {m}.
{a:nom} wohnt im {n} Stock, {b:nom} im {m}.
a=being n=floor b=being m=floor

# Where things are and go.
{x} is lying {q} {y}.
{x:nom} liegt {q} {y:dat}.
x=thing q=position y=thing

{a} {a:have} put {x} {q} {y}.
{a:nom} {a:have} {x:acc} {q} {y:acc} gelegt.
a=subject x=thing q=position y=thing

{a} is standing {q} {b} {p:at}.
{a:nom} steht {p:at} {q} {b:dat}.
a=being q=position b=being p=place

{a} is afraid of {b}.
{a:nom} hat Angst vor {b:dat}.
a=being b=being
"""


@dataclass(frozen=True)
class Pair:
    """A sentence in both languages, and the fillers' lexemes in it."""

    english: str
    german: str
    lexemes: tuple[str, ...]


@dataclass(frozen=True)
class Template:
    """One pattern; `slots` maps the names in its two sides to what may stand there."""

    english: str
    german: str
    slots: dict[str, Slot]

    def draw(self, chance: Chance) -> Pair:
        """A sentence pair in which no lexeme stands twice."""
        while True:
            fillers = {name: slot(chance) for name, slot in self.slots.items()}
            lexemes = tuple(lexeme for filler in fillers.values() for lexeme in filler.lexemes)
            if len(set(lexemes)) == len(lexemes):
                english = self.english.format_map({name: _English(filler) for name, filler in fillers.items()})
                german = self.german.format_map({name: _German(filler) for name, filler in fillers.items()})
                return Pair(_finish(english), _contract(_finish(german)), lexemes)


@dataclass(frozen=True)
class _English:
    filler: Filler

    def __format__(self, form: str) -> str:
        return self.filler.en(form)


@dataclass(frozen=True)
class _German:
    filler: Filler

    def __format__(self, form: str) -> str:
        return self.filler.de(form)


def _finish(text: str) -> str:
    text = re.sub(r" +([.,?])", r"\1", " ".join(text.split()))
    return text[0].upper() + text[1:]


def _contract(german: str) -> str:
    """von dem Hund -> vom Hund; a relative pronoun (der Hund, von dem ich träume) stays."""
    return re.sub(r"(?<!,) von dem ", " vom ", german)


def templates() -> list[Template]:
    """Every pattern, parsed."""
    found = []
    for block in PATTERNS.strip().split("\n\n"):
        english, german, slots = block.splitlines()[-3:]
        names = dict(pair.split("=") for pair in slots.split())
        found.append(Template(english, german, {name: SLOTS[kind] for name, kind in names.items()}))
    return found
