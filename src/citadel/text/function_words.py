"""English function words: articles, pronouns, prepositions, conjunctions, auxiliaries and question words.

They say little about the topic of a text. BM25's stop words (`text/analyser.py`) are a smaller set, kept as
they are because the terms of existing indexes depend on them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a an the this that these those each every either neither some any no none all both few many much more
        most other others another such own same several enough
        i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she
        her hers herself it its itself they them their theirs themselves one ones oneself
        someone somebody something anyone anybody anything everyone everybody everything nobody nothing
        who whom whose which what when where why how whether whoever whatever whichever whenever
        wherever however
        and or but nor so yet for because although though while whereas if unless until since than as
        about above across after against along among around at before behind below beneath beside besides
        between
        beyond by despite down during except from in inside into near of off on onto out outside over per
        through throughout to toward towards under underneath up upon via with within without
        am is are was were be been being do does did doing done have has had having can could may might must
        shall should will would ought let lets get gets got
        not only just also too very quite rather even still already again ever never always often sometimes
        there here then thus hence therefore now once
        s t d ll m re ve don doesn didn isn aren wasn weren hasn haven hadn wouldn couldn shouldn
        """,
    )
)


def function_word_ids(vocabulary: Mapping[str, int]) -> tuple[int, ...]:
    """Ids of the tokens that are function words as a whole.

    >>> function_word_ids({"the": 5, "router": 7, "##the": 8, "how": 6})
    (5, 6)
    """
    return tuple(sorted(id for token, id in vocabulary.items() if token in FUNCTION_WORDS))
