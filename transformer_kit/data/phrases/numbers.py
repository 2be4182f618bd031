"""Numbers, ordinals, clock times, dates and prices in English and German words."""

from __future__ import annotations

from transformer_kit.data.phrases.words import Word

EN_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
DE_SMALL = (
    *("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"),
    *("dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"),
)
EN_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
DE_TENS = ("", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")
EN_ORDINAL = {1: "first", 2: "second", 3: "third", 5: "fifth", 8: "eighth", 9: "ninth", 12: "twelfth"}
DE_ORDINAL = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}

MONTHS = (
    ("January", "Januar"),
    ("February", "Februar"),
    ("March", "März"),
    ("April", "April"),
    ("May", "Mai"),
    ("June", "Juni"),
    ("July", "Juli"),
    ("August", "August"),
    ("September", "September"),
    ("October", "Oktober"),
    ("November", "November"),
    ("December", "Dezember"),
)

# Minutes as they are spoken: what follows "at" before the hour, and the German, which counts from the half hour
# between twenty and forty minutes; True where the German names the coming hour although the English does not.
MINUTES = (
    ("five past", "fünf nach", False),
    ("ten past", "zehn nach", False),
    ("quarter past", "Viertel nach", False),
    ("twenty past", "zwanzig nach", False),
    ("twenty-five past", "fünf vor halb", True),
    ("half past", "halb", True),
    ("twenty-five to", "fünf nach halb", False),
    ("twenty to", "zwanzig vor", False),
    ("quarter to", "Viertel vor", False),
    ("ten to", "zehn vor", False),
    ("five to", "fünf vor", False),
)


def cardinal(n: int) -> tuple[str, str]:
    """0 <= n < 1000 in words, English and German."""
    if n < 20:
        return EN_SMALL[n], DE_SMALL[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        if not ones:
            return EN_TENS[tens], DE_TENS[tens]
        german_one = "ein" if ones == 1 else DE_SMALL[ones]
        return f"{EN_TENS[tens]}-{EN_SMALL[ones]}", f"{german_one}und{DE_TENS[tens]}"
    hundreds, rest = divmod(n, 100)
    english = f"{EN_SMALL[hundreds]} hundred"
    german = ("ein" if hundreds == 1 else DE_SMALL[hundreds]) + "hundert"
    return (f"{english} and {cardinal(rest)[0]}", german + cardinal(rest)[1]) if rest else (english, german)


def ordinal(n: int) -> tuple[str, str]:
    """1 <= n < 32: the English ordinal and the German stem, to which endings are added."""
    english = cardinal(n)[0]
    if n in EN_ORDINAL:
        english = EN_ORDINAL[n]
    elif n > 20 and n % 10:
        english = f"{EN_TENS[n // 10]}-{ordinal(n % 10)[0]}"
    else:
        english = english[:-1] + "ieth" if english.endswith("y") else english + "th"
    german = DE_ORDINAL.get(n) or cardinal(n)[1] + ("t" if n < 20 else "st")
    return english, german


def number(n: int) -> Word:
    """A cardinal as a filler."""
    english, german = cardinal(n)
    return Word((english,), {"": english}, {"": german})


def ordinal_word(n: int) -> Word:
    """An ordinal in its weak form: im dritten Stock."""
    english, german = ordinal(n)
    return Word((english,), {"": english}, {"": german + "en"})


def clock(hour: int, minute: int) -> Word:
    """A time of day: hour 1..12; minute an index into MINUTES, or -1 for the full hour."""
    english_hour, german_hour = cardinal(hour)
    if minute < 0:
        german = "ein Uhr" if hour == 1 else f"{german_hour} Uhr"
        return Word((english_hour, "o'clock"), {"": f"{english_hour} o'clock"}, {"": german})
    english, german, coming = MINUTES[minute]
    # "five nach halb": twenty-five to four is five past half four: the English hour already is the coming one.
    german_hour = cardinal(hour % 12 + 1)[1] if coming else german_hour
    return Word((english_hour, english), {"": f"{english} {english_hour}"}, {"": f"{german} {german_hour}"})


def date(day: int, month: int) -> Word:
    """A day of the year: day 1..31, month 0..11."""
    english, german = ordinal(day)
    name_en, name_de = MONTHS[month]
    return Word((english, name_en), {"": f"the {english} of {name_en}"}, {"": f"{german}en {name_de}"})


def price(euros: int, cents: int) -> Word:
    """An amount of money: two euros and fifty cents, zwei Euro fünfzig."""
    en_euros, de_euros = cardinal(euros)
    en_cents, de_cents = cardinal(cents)
    english = f"{en_euros} euros and {en_cents} cents"
    return Word((en_euros, en_cents), {"": english}, {"": f"{de_euros} Euro {de_cents}"})
