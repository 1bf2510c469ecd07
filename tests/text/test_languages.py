"""Small collections in six scripts: BM25 ranks the right document first."""

from __future__ import annotations

from pathlib import Path

import pytest

import citadel

pytest.importorskip("Stemmer")

COLLECTIONS: dict[str, list[str]] = {
    "german": [
        "Die Bäcker backen jeden Morgen frische Brote und Kuchen.",
        "In den Häusern der Altstadt wohnen viele Familien.",
        "Der Zug nach München hatte eine Stunde Verspätung.",
        "Kinder spielen im Garten mit bunten Bällen.",
    ],
    "russian": [
        "Пекари каждое утро пекут свежий хлеб и пироги.",
        "В старых домах города живут большие семьи.",
        "Поезд в Москву опоздал на один час.",
        "Дети играют в саду с разноцветными мячами.",
    ],
    "arabic": [
        "يخبز الخبازون الخبز الطازج كل صباح.",
        "تعيش العائلات الكبيرة في البيوت القديمة.",
        "تأخر القطار المتجه إلى القاهرة ساعة واحدة.",
        "يلعب الأطفال في الحديقة بالكرات الملونة.",
    ],
    "chinese": [
        "面包师每天早上烤新鲜的面包和蛋糕。",
        "许多家庭住在老城的房子里。",
        "去北京的火车晚点了一个小时。",
        "孩子们在花园里玩彩色的球。",
    ],
    "japanese": [
        "パン屋は毎朝新鮮なパンとケーキを焼きます。",
        "旧市街の古い家には多くの家族が住んでいます。",
        "東京行きの電車は一時間遅れました。",
        "子供たちは庭で色とりどりのボールで遊びます。",
    ],
    "thai": [
        "คนทำขนมปังอบขนมปังสดและเค้กทุกเช้า",
        "หลายครอบครัวอาศัยอยู่ในบ้านเก่าของเมือง",
        "รถไฟไปกรุงเทพมาช้าหนึ่งชั่วโมง",
        "เด็กเล่นลูกบอลสีสวยในสวน",
    ],
}
QUERIES: dict[str, list[str]] = {  # of each document, in other forms of its words
    "german": ["Brot eines Bäckers", "Haus mit einer Familie", "verspätete Züge", "Ball eines Kindes"],
    "russian": ["хлеба пекаря", "дом семьи", "поезда из Москвы", "мяч для детей"],
    "arabic": ["خبز الصباح", "بيت العائلة", "قطارات القاهرة", "كرة في حديقة"],
    "chinese": ["新鲜面包", "老房子", "北京火车", "花园里的孩子"],
    "japanese": ["新鮮なパン", "古い家", "東京の電車", "子供のボール"],
    "thai": ["ขนมปังสด", "บ้านเก่า", "รถไฟกรุงเทพ", "เด็กในสวน"],
}
ANALYSERS = {
    "german": ["german"],
    "russian": ["russian"],
    "arabic": ["arabic"],
    "chinese": ["cjk", "plain"],
    "japanese": ["cjk", "plain"],
    "thai": ["plain", "cjk"],
}
CASES = [(language, analyser) for language, names in ANALYSERS.items() for analyser in names]


@pytest.mark.parametrize(("language", "analyser"), CASES)
def test_the_right_document_is_first(language: str, analyser: str, tmp_path: Path) -> None:
    with citadel.Index.create(tmp_path, analyser=analyser) as index:
        index.add({"id": str(number), "text": text} for number, text in enumerate(COLLECTIONS[language]))
        searcher = index.commit().searcher()
    first = [searcher.search(query, k=1)[0].id for query in QUERIES[language]]
    assert first == ["0", "1", "2", "3"]


def test_explanations_name_the_characters_that_match(tmp_path: Path) -> None:
    with citadel.Index.create(tmp_path, analyser="cjk") as index:
        index.add([{"id": "d1", "text": COLLECTIONS["japanese"][2]}])
        explanation = index.commit().searcher().explain("東京の電車", "d1")
    assert {match.name for match in explanation.matches if match.postings} >= {"東京", "電車"}
    assert explanation.to_json()["score"] > 0
