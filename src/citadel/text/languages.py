"""Stemmers of the Snowball project by language, and words that identify their behaviour."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from citadel.errors import UsageError

PROBES: dict[str, str] = {
    "arabic": "كتاب كتب الكتاب والكتب مكتبة مدرسة المدارس يكتبون كاتبة سيارات",
    "armenian": "գիրք գրքեր գրքերը տուն տներ տների քաղաք քաղաքներում գնալ գնում",
    "basque": "etxe etxea etxeak etxean liburu liburuak liburuaren joan joaten handiagoa",
    "catalan": "casa cases caminar caminava llibre llibres nacional nacionals l'home cançons",
    "czech": "kniha knihy knihách město městech dobrý dobrého psát píšeme českého",
    "danish": "bog bøger bøgerne hus husene løbe løber løbende venlighed venskaber",
    "dutch": "boek boeken huis huizen lopen loopt lichamelijk mogelijkheden kinderen groter",
    "dutch_porter": "boek boeken huis huizen lopen loopt lichamelijk mogelijkheden kinderen groter",
    "esperanto": "libro libroj librojn domo domoj kuri kuras kurante bela belaj",
    "estonian": "raamat raamatud raamatutes maja majad majades jooksma jookseb suurem linnast",
    "finnish": "kirja kirjat kirjoissa talo talot taloissa juosta juoksee suurempi kaupungista",
    "french": "livre livres maison maisons courir courait nationalité nationalités l'homme majestueuse",
    "german": "buch bücher bücherei haus häuser häusern laufen läuft freundlichkeit straße",
    "greek": "βιβλίο βιβλία βιβλίων δρόμος δρόμοι σπίτι σπίτια τρέχω τρέχει μεγαλύτερος",
    "hindi": "किताब किताबें किताबों लड़का लड़के लड़कियाँ घर घरों जाना जाता",
    "hungarian": "könyv könyvek könyvekben ház házak házakban futni futott nagyobb városból",
    "indonesian": "buku bukunya membaca dibaca pembacaan rumah perumahan berlari larilah makanan",
    "irish": "leabhar leabhair teach tithe rith ritheann cairdeas d'athair bhean gCorcaigh",
    "italian": "libro libri casa case correre correva nazionalità amicizie l'uomo dell'acqua",
    "lithuanian": "knyga knygos knygose namas namai namuose bėgti bėga didesnis miesto",
    "nepali": "किताब किताबहरू किताबको घर घरहरूमा केटा केटाहरूले जान्छ गर्नु राम्रो",
    "norwegian": "bok bøker bøkene hus husene løpe løper løpende vennlighet vennskap",
    "persian": "کتاب کتابها کتاب‌های خانه خانه‌ها می‌روم رفتن بزرگتر شهرهای دوستان",
    "polish": "książka książki książkach dom domy domach biegać biegał większy miasta",
    "porter": "generously universities argument relational hopefulness electricity news skies innings dying",
    "porter2": "generously universities argument relational hopefulness electricity news skies innings dying",
    "portuguese": "livro livros casa casas correr corria nacionalidade nacionalidades amizades quilométricas",
    "romanian": "carte cărți cărțile casă case casele alerga alerga naționalitate prietenie",
    "russian": "книга книги книгах дом дома домами бегать бегал важнейший красивого",
    "serbian": "књига књиге књигама кућа куће kuća kućama trčati trčao veći",
    "sesotho": "buka dibuka ntlo matlo bana ngwana matha mathile moholo batho",
    "spanish": "libro libros casa casas correr corría nacionalidad nacionalidades amistades rápidamente",
    "swedish": "bok böcker böckerna hus husen springa springer vänlighet vänskaper friskt",
    "tamil": "புத்தகம் புத்தகங்கள் வீடு வீடுகள் வீட்டில் ஓடு ஓடினான் பெரிய நகரத்தில் மனிதர்கள்",
    "turkish": "kitap kitaplar kitapları ev evler evlerde koşmak koşuyor büyükler ISPARTA",
    "yiddish": "בוך ביכער הויז הײַזער לויפֿן לויפֿט גרעסער שטאָט קינדער פֿרײַנדשאַפֿט",
}
LANGUAGES = tuple(PROBES)

_ELISIONS = {  # articles and the like before an apostrophe
    "catalan": "d|l|m|n|s|t",
    "french": "c|d|j|jusqu|l|lorsqu|m|n|puisqu|qu|quoiqu|s|t",
    "irish": "b|d|m",
    "italian": "agl|all|c|coll|d|dagl|dall|degl|dell|gl|l|m|negl|nell|pell|s|sugl|sull|t|un|v",
}
_TURKISH = str.maketrans({"I": "ı", "İ": "i"})


def stemmer(language: str) -> Callable[[str], str]:
    """The stemmer of a language, for folded words.

    >>> stem = stemmer("german")
    >>> stem("häuser"), stem("haus")
    ('haus', 'haus')
    """
    try:
        import Stemmer
    except ImportError:  # citadel was copied, not installed
        raise UsageError(
            f"the {language} analyser needs PyStemmer: run `pip install PyStemmer`, or choose plain"
        ) from None
    try:
        algorithm = "english" if language == "porter2" else language
        stem: Callable[[str], str] = Stemmer.Stemmer(algorithm, 0).stemWord
    except KeyError:
        raise UsageError(
            f"PyStemmer {Stemmer.version()} has no stemmer {language!r}: run `pip install -U PyStemmer`"
        ) from None
    elisions = _ELISIONS.get(language)
    if elisions is None:
        return stem
    elision = re.compile(f"(?:{elisions})'(?=.)")
    return lambda word: stem(elision.sub("", word, count=1) if elision.match(word) else word)


def turkish_case(word: str) -> str:
    """A word with the lower-case letters of Turkish: I and İ are two letters.

    >>> turkish_case("ISPARTA"), turkish_case("İzmir")
    ('ıSPARTA', 'izmir')
    """
    return unicodedata.normalize("NFC", word).translate(_TURKISH)
