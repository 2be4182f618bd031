"""The words of the demo corpus. One entry a line: English = German.

Nouns: singular/plural (plural in -s left out) = article nominative genitive plural.
Adjectives: positive (comparative superlative) = positive comparative superlative; "~" stands for regular forms.
Verbs: base past participle = infinitive, third person, participle, what it governs.
"""

from __future__ import annotations

from transformer_kit.data.phrases.words import Adjective, Noun, Word, pronoun, verb

PEOPLE = """
king = der König Königs Könige
pirate = der Pirat Piraten Piraten
baker = der Bäcker Bäckers Bäcker
wizard = der Zauberer Zauberers Zauberer
gardener = der Gärtner Gärtners Gärtner
giant = der Riese Riesen Riesen
knight = der Ritter Ritters Ritter
uncle = der Onkel Onkels Onkel
neighbour = der Nachbar Nachbarn Nachbarn
postman/postmen = der Briefträger Briefträgers Briefträger
queen = die Königin Königin Königinnen
witch/witches = die Hexe Hexe Hexen
aunt = die Tante Tante Tanten
princess/princesses = die Prinzessin Prinzessin Prinzessinnen
grandmother = die Großmutter Großmutter Großmütter
fairy/fairies = die Fee Fee Feen
child/children = das Kind Kindes Kinder
girl = das Mädchen Mädchens Mädchen
"""

ANIMALS = """
dog = der Hund Hundes Hunde
bear = der Bär Bären Bären
dragon = der Drache Drachen Drachen
fox/foxes = der Fuchs Fuchses Füchse
lion = der Löwe Löwen Löwen
frog = der Frosch Frosches Frösche
hedgehog = der Igel Igels Igel
monkey = der Affe Affen Affen
rabbit = der Hase Hasen Hasen
elephant = der Elefant Elefanten Elefanten
penguin = der Pinguin Pinguins Pinguine
robot = der Roboter Roboters Roboter
cat = die Katze Katze Katzen
mouse/mice = die Maus Maus Mäuse
owl = die Eule Eule Eulen
cow = die Kuh Kuh Kühe
goose/geese = die Gans Gans Gänse
duck = die Ente Ente Enten
snail = die Schnecke Schnecke Schnecken
bee = die Biene Biene Bienen
turtle = die Schildkröte Schildkröte Schildkröten
horse = das Pferd Pferdes Pferde
pig = das Schwein Schweins Schweine
unicorn = das Einhorn Einhorns Einhörner
camel = das Kamel Kamels Kamele
monster = das Monster Monsters Monster
crocodile = das Krokodil Krokodils Krokodile
"""

THINGS = """
hat = der Hut Hutes Hüte
key = der Schlüssel Schlüssels Schlüssel
letter = der Brief Briefes Briefe
umbrella = der Regenschirm Regenschirms Regenschirme
ring = der Ring Ringes Ringe
spoon = der Löffel Löffels Löffel
mirror = der Spiegel Spiegels Spiegel
suitcase = der Koffer Koffers Koffer
ball = der Ball Balles Bälle
shoe = der Schuh Schuhs Schuhe
button = der Knopf Knopfes Knöpfe
chair = der Stuhl Stuhls Stühle
coat = der Mantel Mantels Mäntel
lamp = die Lampe Lampe Lampen
bottle = die Flasche Flasche Flaschen
cup = die Tasse Tasse Tassen
crown = die Krone Krone Kronen
flower = die Blume Blume Blumen
clock = die Uhr Uhr Uhren
violin = die Geige Geige Geigen
candle = die Kerze Kerze Kerzen
coin = die Münze Münze Münzen
sock = die Socke Socke Socken
box/boxes = die Kiste Kiste Kisten
pumpkin = der Kürbis Kürbisses Kürbisse
trumpet = die Trompete Trompete Trompeten
book = das Buch Buches Bücher
bicycle = das Fahrrad Fahrrads Fahrräder
picture = das Bild Bildes Bilder
sword = das Schwert Schwertes Schwerter
piano = das Klavier Klaviers Klaviere
shirt = das Hemd Hemdes Hemden
dress/dresses = das Kleid Kleides Kleider
egg = das Ei Eies Eier
boat = das Boot Bootes Boote
telescope = das Fernrohr Fernrohrs Fernrohre
"""

FOOD = """
apple = der Apfel Apfels Äpfel
cake = der Kuchen Kuchens Kuchen
biscuit = der Keks Kekses Kekse
pear = die Birne Birne Birnen
banana = die Banane Banane Bananen
cherry/cherries = die Kirsche Kirsche Kirschen
nut = die Nuss Nuss Nüsse
potato/potatoes = die Kartoffel Kartoffel Kartoffeln
tomato/tomatoes = die Tomate Tomate Tomaten
carrot = die Möhre Möhre Möhren
onion = die Zwiebel Zwiebel Zwiebeln
lemon = die Zitrone Zitrone Zitronen
mushroom = der Pilz Pilzes Pilze
pancake = der Pfannkuchen Pfannkuchens Pfannkuchen
"""

CHARACTER = """
old older oldest = alt älter ältest
young younger youngest = jung jünger jüngst
small smaller smallest = klein ~ ~
big bigger biggest = groß größer größt
clever cleverer cleverest = klug klüger klügst
strong stronger strongest = stark stärker stärkst
lazy lazier laziest = faul ~ ~
happy happier happiest = glücklich ~ ~
sad sadder saddest = traurig ~ ~
hungry hungrier hungriest = hungrig ~ ~
brave braver bravest = mutig ~ ~
tired ~ ~ = müde müder müdest
quick quicker quickest = schnell ~ ~
slow slower slowest = langsam ~ ~
funny funnier funniest = lustig ~ ~
curious ~ ~ = neugierig ~ ~
polite politer politest = höflich ~ ~
famous ~ ~ = berühmt ~ berühmtest
friendly friendlier friendliest = freundlich ~ ~
shy shyer shyest = schüchtern ~ ~
wild wilder wildest = wild ~ wildest
rich richer richest = reich ~ ~
patient ~ ~ = geduldig ~ ~
elegant ~ ~ = elegant ~ elegantest
"""

QUALITY = """
red redder reddest = rot röter rötest
blue bluer bluest = blau ~ ~
green greener greenest = grün ~ ~
yellow yellower yellowest = gelb ~ ~
black blacker blackest = schwarz schwärzer schwärzest
white whiter whitest = weiß ~ weißest
new newer newest = neu ~ neuest
heavy heavier heaviest = schwer ~ ~
light lighter lightest = leicht ~ leichtest
round rounder roundest = rund ~ rundest
cheap cheaper cheapest = billig ~ ~
expensive ~ ~ = teuer teurer teuerst
beautiful ~ ~ = schön ~ ~
dirty dirtier dirtiest = schmutzig ~ ~
strange stranger strangest = seltsam ~ ~
tiny tinier tiniest = winzig ~ ~
"""

TASTE = """
sweet sweeter sweetest = süß ~ süßest
sour sourer sourest = sauer saurer sauerst
fresh fresher freshest = frisch ~ frischest
ripe riper ripest = reif ~ ~
delicious ~ ~ = lecker ~ ~
warm warmer warmest = warm wärmer wärmst
"""

SOCIAL = """
see saw seen = sehen sieht gesehen acc
hear heard heard = hören hört gehört acc
love loved loved = lieben liebt geliebt acc
visit visited visited = besuchen besucht besucht acc
look_for looked_for looked_for = suchen sucht gesucht acc
find found found = finden findet gefunden acc
wake woke woken = wecken weckt geweckt acc
chase chased chased = jagen jagt gejagt acc
greet greeted greeted = begrüßen begrüßt begrüßt acc
admire admired admired = bewundern bewundert bewundert acc
hug hugged hugged = umarmen umarmt umarmt acc
kiss kissed kissed = küssen küsst geküsst acc
tickle tickled tickled = kitzeln kitzelt gekitzelt acc
understand understood understood = verstehen versteht verstanden acc
surprise surprised surprised = überraschen überrascht überrascht acc
forget forgot forgotten = vergessen vergisst vergessen acc
draw drew drawn = zeichnen zeichnet gezeichnet acc
rescue rescued rescued = retten rettet gerettet acc
catch caught caught = fangen fängt gefangen acc
watch watched watched = beobachten beobachtet beobachtet acc
annoy annoyed annoyed = ärgern ärgert geärgert acc
feed fed fed = füttern füttert gefüttert acc
meet met met = treffen trifft getroffen acc
recognise recognised recognised = erkennen erkennt erkannt acc
praise praised praised = loben lobt gelobt acc
invite invited invited = ein|laden lädt eingeladen acc
call called called = an|rufen ruft angerufen acc
pick_up picked_up picked_up = ab|holen holt abgeholt acc
imitate imitated imitated = nach|ahmen ahmt nachgeahmt acc
"""

DATIVE = """
help helped helped = helfen hilft geholfen dat
thank thanked thanked = danken dankt gedankt dat
trust trusted trusted = vertrauen vertraut vertraut dat
answer answered answered = antworten antwortet geantwortet dat
obey obeyed obeyed = gehorchen gehorcht gehorcht dat
listen_to listened_to listened_to = zu|hören hört zugehört dat
forgive forgave forgiven = verzeihen verzeiht verziehen dat
"""

PREPOSITIONAL = """
wait_for waited_for waited_for = warten wartet gewartet auf+acc
think_of thought_of thought_of = denken denkt gedacht an+acc
laugh_at laughed_at laughed_at = lachen lacht gelacht über+acc
dream_of dreamt_of dreamt_of = träumen träumt geträumt von+dat
talk_to talked_to talked_to = sprechen spricht gesprochen mit+dat
play_with played_with played_with = spielen spielt gespielt mit+dat
argue_with argued_with argued_with = streiten streitet gestritten mit+dat
look_after looked_after looked_after = auf|passen passt aufgepasst auf+acc
sing_for sang_for sung_for = singen singt gesungen für+acc
"""

ALONE = """
laugh laughed laughed = lachen lacht gelacht -
cry cried cried = weinen weint geweint -
sing sang sung = singen singt gesungen -
sleep slept slept = schlafen schläft geschlafen -
dance danced danced = tanzen tanzt getanzt -
snore snored snored = schnarchen schnarcht geschnarcht -
work worked worked = arbeiten arbeitet gearbeitet -
whistle whistled whistled = pfeifen pfeift gepfiffen -
cook cooked cooked = kochen kocht gekocht -
yawn yawned yawned = gähnen gähnt gegähnt -
sneeze sneezed sneezed = niesen niest geniest -
giggle giggled giggled = kichern kichert gekichert -
shout shouted shouted = schreien schreit geschrien -
tremble trembled trembled = zittern zittert gezittert -
smile smiled smiled = lächeln lächelt gelächelt -
practise practised practised = üben übt geübt -
tidy_up tidied_up tidied_up = auf|räumen räumt aufgeräumt -
"""

HANDLE = """
buy bought bought = kaufen kauft gekauft acc
lose lost lost = verlieren verliert verloren acc
hide hid hidden = verstecken versteckt versteckt acc
steal stole stolen = stehlen stiehlt gestohlen acc
carry carried carried = tragen trägt getragen acc
paint painted painted = bemalen bemalt bemalt acc
repair repaired repaired = reparieren repariert repariert acc
polish polished polished = polieren poliert poliert acc
clean cleaned cleaned = putzen putzt geputzt acc
need needed needed = brauchen braucht gebraucht acc
weigh weighed weighed = wiegen wiegt gewogen acc
break broke broken = zerbrechen zerbricht zerbrochen acc
bury buried buried = vergraben vergräbt vergraben acc
pack packed packed = ein|packen packt eingepackt acc
throw_away threw_away thrown_away = weg|werfen wirft weggeworfen acc
bring_back brought_back brought_back = zurück|bringen bringt zurückgebracht acc
"""

GIVE = """
give gave given = geben gibt gegeben dat
show showed shown = zeigen zeigt gezeigt dat
send sent sent = schicken schickt geschickt dat
sell sold sold = verkaufen verkauft verkauft dat
promise promised promised = versprechen verspricht versprochen dat
lend lent lent = leihen leiht geliehen dat
bring brought brought = bringen bringt gebracht dat
offer offered offered = an|bieten bietet angeboten dat
throw threw thrown = zu|werfen wirft zugeworfen dat
"""

EAT = """
eat ate eaten = essen isst gegessen acc
cut cut cut = schneiden schneidet geschnitten acc
count counted counted = zählen zählt gezählt acc
peel peeled peeled = schälen schält geschält acc
share shared shared = teilen teilt geteilt acc
"""

# English place: where; to where | German place as a subject; where; to where. "-" where it is not used.
PLACES = """
garden: in the garden, to the garden = der Garten, im Garten, in den Garten
forest: in the forest, to the forest = der Wald, im Wald, in den Wald
castle: at the castle, to the castle = das Schloss, im Schloss, ins Schloss
kitchen: in the kitchen, to the kitchen = die Küche, in der Küche, in die Küche
library: in the library, to the library = die Bibliothek, in der Bibliothek, in die Bibliothek
station: at the station, to the station = der Bahnhof, am Bahnhof, zum Bahnhof
market: at the market, to the market = der Markt, auf dem Markt, auf den Markt
museum: at the museum, to the museum = das Museum, im Museum, ins Museum
theatre: at the theatre, to the theatre = das Theater, im Theater, ins Theater
beach: on the beach, to the beach = der Strand, am Strand, an den Strand
island: on the island, to the island = die Insel, auf der Insel, auf die Insel
bridge: on the bridge, to the bridge = die Brücke, auf der Brücke, auf die Brücke
moon: on the moon, to the moon = der Mond, auf dem Mond, zum Mond
cellar: in the cellar, to the cellar = der Keller, im Keller, in den Keller
tower: in the tower, to the tower = der Turm, im Turm, in den Turm
school: at school, to school = die Schule, in der Schule, in die Schule
bakery: at the bakery, to the bakery = die Bäckerei, in der Bäckerei, in die Bäckerei
zoo: at the zoo, to the zoo = der Zoo, im Zoo, in den Zoo
"""

CITIES = (
    "Berlin=Berlin Hamburg=Hamburg Paris=Paris Vienna=Wien Munich=München Cologne=Köln Zurich=Zürich Venice=Venedig "
    "Prague=Prag Rome=Rom Geneva=Genf Warsaw=Warschau Brussels=Brüssel Lisbon=Lissabon Athens=Athen Milan=Mailand"
)
VEHICLES = (
    "train=dem Zug;bus=dem Bus;car=dem Auto;ship=dem Schiff;tram=der Straßenbahn;bicycle=dem Fahrrad;taxi=dem Taxi"
)
DAYS = (
    "Monday=Montag Tuesday=Dienstag Wednesday=Mittwoch Thursday=Donnerstag Friday=Freitag Saturday=Samstag "
    "Sunday=Sonntag"
)
DAY_PARTS = "morning=morgen afternoon=nachmittag evening=abend"
PAST_TIMES = (
    "yesterday=gestern;last week=letzte Woche;last year=letztes Jahr;last summer=letzten Sommer;"
    "this morning=heute Morgen;a year ago=vor einem Jahr"
)
NEXT_TIMES = (
    "today=heute;tomorrow=morgen;next week=nächste Woche;next year=nächstes Jahr;this evening=heute Abend;soon=bald"
)
SPANS = "days=Tagen weeks=Wochen months=Monaten years=Jahren"
UNITS = "cups=Tassen glasses=Gläser bottles=Flaschen litres=Liter pots=Kannen"
DRINKS = "tea=Tee coffee=Kaffee milk=Milch water=Wasser juice=Saft soup=Suppe cocoa=Kakao lemonade=Limonade honey=Honig"
BOXES = "kilos=Kilo pounds=Pfund bags=Tüten baskets=Körbe plates=Teller"
MODALS = """
must = muss musst muss müssen
can = kann kannst kann können
should = soll sollst soll sollen
may = darf darfst darf dürfen
"""
QUESTIONS = "why=warum;when=wann;where=wo;how often=wie oft"
POSITIONS = "under=unter;behind=hinter;next to=neben;in front of=vor;on=auf"
THOUGHTS = "says=sagt believes=glaubt hopes=hofft knows=weiß dreams=träumt"


def rows(table: str) -> list[tuple[str, str]]:
    """The (English, German) halves of each line of a table."""
    lines = [line.split(" = ") for line in table.strip().splitlines()]
    return [(english, german) for english, german in lines]


def pairs(listing: str) -> list[tuple[str, str]]:
    """The entries of a one-line listing: "English=German" parted by ";" or, without one, by spaces."""
    parts = listing.split(";") if ";" in listing else listing.split()
    return [(english, german) for english, german in (part.split("=") for part in parts)]


def nouns(table: str, person: bool) -> list[Noun]:
    entries = []
    for english, german in rows(table):
        singular, _, plural = english.partition("/")
        article, nominative, genitive, german_plural = german.split()
        gender = {"der": "m", "die": "f", "das": "n"}[article]
        plural = plural or singular + "s"
        entries.append(Noun(singular, plural, nominative, genitive, german_plural, gender, person))
    return entries


def adjectives(table: str) -> list[Adjective]:
    entries = []
    for english, german in rows(table):
        positive, more, most = english.split()
        base, comparative, superlative = german.split()
        entries.append(
            Adjective(
                positive,
                f"more {positive}" if more == "~" else more,
                f"most {positive}" if most == "~" else most,
                base,
                base + "er" if comparative == "~" else comparative,
                base + "st" if superlative == "~" else superlative,
            )
        )
    return entries


def verbs(table: str) -> list[Word]:
    return [verb(*english.split(), *german.split()) for english, german in rows(table)]


def words(listing: str) -> list[Word]:
    """Fillers with one form in each language."""
    return [Word((english,), {"": english}, {"": german}) for english, german in pairs(listing)]


def places() -> list[Word]:
    """Places with the forms "" (as a subject), "at" and "to"."""
    entries = []
    for english, german in rows(PLACES):
        name, _, phrases = english.partition(": ")
        at, to = phrases.split(", ")
        subject, where, whither = german.split(", ")
        entries.append(
            Word((name,), {"": f"the {name}", "at": at, "to": to}, {"": subject, "at": where, "to": whither})
        )
    return entries


def modals() -> list[Word]:
    persons = ("ich", "du", "er", "wir")
    return [
        Word((english,), {"": english}, dict(zip(persons, german.split(), strict=True)))
        for english, german in rows(MODALS)
    ]


def pronouns() -> list[Word]:
    return [
        pronoun("I", "ich", "base do am was have", "ich habe bin werde möchte"),
        pronoun("you", "du", "base do are were have", "du hast bist wirst möchtest"),
        pronoun("he", "er", "s does is was has", "er hat ist wird möchte"),
        pronoun("she", "sie", "s does is was has", "er hat ist wird möchte"),
        pronoun("we", "wir", "base do are were have", "wir haben sind werden möchten"),
        pronoun("they", "sie", "base do are were have", "wir haben sind werden möchten"),
    ]
