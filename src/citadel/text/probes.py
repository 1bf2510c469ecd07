"""Probe words whose terms identify the behaviour of an analyser; fixed within a version."""

from __future__ import annotations

_ENGLISH = """
ponies ties caress cats feed agreed plastered bled motoring sing conflated troubled sized hopping tanned
falling hissing fizzed failing filing happy sky relational conditional rational valency hesitancy digitizer
conformably radically differently vilely analogously vietnamization predication operator feudalism
decisiveness hopefulness callousness formality sensitivity sensibility triplicate formative formalize
electricity electrical hopeful goodness revival allowance inference airliner gyroscopic adjustable defensible
irritant replacement adjustment dependent adoption homologous communism activate angularity effective
bowdlerize probate rate cease controlling rolling generate generates generating general generally generic
generously university universe universal news innings inning outing canning herring earring proceed exceed
succeed dying lying tying idly gently ugly early only singly skis skies atlas cosmos bias andes knightly
knights knives leaves wolves geese mice oxen children women data datum criteria phenomena analyses analysis
hypotheses hypothesis matrices indices vertices axes appendices schemata stemming stemmer stems stemmed
retrieval retrieve retrieved retrieving routing router routed routes indexing indexed indexes search searches
searching searched vectors weighted weighting keyed lists listing queries query documents tokenized tokenise
tokenization learned learnt argument arguing argued argues abilities ability able enabled studies studying
studied student boy's boys' it's don't o'clock o'neill's isn't we're the and not such will
"""

_UNICODE = """
café CAFÉ cafe\u0301 naïve Straße STRASSE ΟΔΟΣ οδός İstanbul ıssız ﬁne Ｆｕｌｌ１２３ H₂O mc² x³ ½ № Ⅷ ①
हिन्दी தமிழ் العربية עברית ภาษาไทย русский 東京大学 ひらがな ｶﾞｷﾞ 한국어 co\u00adoperate می\u200cخواهم it’s
snake_case 3.14 1,000 p53 covid-19 e-mail user@example.com 🦊fox don\u02bct
"""

PROBES: tuple[str, ...] = (*_ENGLISH.split(), *_UNICODE.split())
