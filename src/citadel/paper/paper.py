"""Numbers reported by the paper (CITADEL, ACL 2023); None if not reported."""

from __future__ import annotations

from typing import NamedTuple


class Marco(NamedTuple):
    """A row of Table 1: MS MARCO dev, TREC DL 2019 and 2020, index and latency."""

    mrr: float
    recall: float
    dl19: float
    dl19_recall: float
    dl20: float
    dl20_recall: float
    gigabytes: float
    gpu_ms: float | None
    cpu_ms: float | None


TABLE_1 = {
    "BM25": Marco(0.188, 0.858, 0.506, 0.739, 0.488, 0.733, 0.67, None, 40.1),
    "DPR-128": Marco(0.285, 0.937, 0.576, 0.702, 0.603, 0.757, 4.33, 0.63, 430),
    "DPR-768": Marco(0.319, 0.941, 0.611, 0.742, 0.591, 0.796, 26.0, 1.28, 2015),
    "SPLADE": Marco(0.340, 0.965, 0.683, 0.813, 0.671, 0.823, 2.60, None, 475),
    "COIL-tok": Marco(0.350, 0.964, 0.660, 0.809, 0.679, 0.825, 52.5, 46.8, 1295),
    "COIL-full": Marco(0.353, 0.967, 0.704, 0.835, 0.688, 0.841, 78.5, 47.9, 3258),
    "ColBERT": Marco(0.360, 0.968, 0.694, 0.830, 0.676, 0.837, 154, 178, None),
    "CITADEL": Marco(0.362, 0.975, 0.687, 0.829, 0.661, 0.830, 78.3, 3.95, 520),
    "coCondenser": Marco(0.382, 0.984, 0.674, 0.820, 0.684, 0.839, 26.0, 1.28, 2015),
    "SPLADE-v2": Marco(0.368, 0.979, 0.729, 0.865, 0.718, 0.890, 4.12, None, 2710),
    "ColBERT-v2": Marco(0.397, 0.985, 0.744, 0.882, 0.750, 0.894, 29.0, 122, 3275),
    "ColBERT-PLAID": Marco(0.397, 0.984, 0.744, 0.882, 0.749, 0.894, 22.1, 55.0, 370),
    "CITADEL+": Marco(0.399, 0.981, 0.703, 0.830, 0.702, 0.859, 81.3, 3.21, 635),
}

# BEIR folder → the column's name in Table 2.
BEIR = {
    "arguana": "AA", "climate-fever": "CF", "dbpedia-entity": "DB", "fever": "Fe", "fiqa": "FQ",
    "hotpotqa": "HQ", "nfcorpus": "NF", "nq": "NQ", "quora": "Qu", "scifact": "SF", "scidocs": "SD",
    "trec-covid": "TC", "webis-touche2020": "T2",
}  # fmt: skip

TABLE_2 = {  # nDCG@10 in the order of BEIR, then the average
    "BM25": (.315, .213, .313, .753, .236, .603, .325, .329, .789, .665, .158, .656, .367, .440),
    "DPR-768": (.323, .167, .295, .651, .224, .441, .244, .410, .750, .479, .103, .604, .185, .375),
    "SPLADE": (.445, .201, .370, .740, .289, .640, .322, .469, .834, .633, .149, .661, .201, .453),
    "COIL-full": (.295, .216, .398, .840, .313, .713, .331, .519, .838, .707, .155, .668, .281, .483),
    "ColBERT": (.233, .184, .392, .771, .317, .593, .305, .524, .854, .671, .165, .677, .202, .453),
    "CITADEL": (.503, .191, .406, .784, .298, .653, .324, .510, .844, .674, .152, .687, .294, .486),
    "coCondenser": (.440, .133, .347, .511, .281, .533, .319, .467, .863, .591, .130, .708, .143, .420),
    "SPLADE-v2": (.479, .235, .435, .786, .336, .684, .334, .521, .838, .693, .158, .710, .272, .499),
    "ColBERT-v2": (.463, .176, .446, .785, .356, .667, .338, .562, .854, .693, .165, .738, .263, .500),
    "CITADEL+": (.490, .181, .420, .747, .332, .652, .337, .539, .852, .695, .147, .680, .340, .493),
    "CITADEL+ w/o reg.": (.511, .182, .422, .765, .330, .664, .337, .540, .853, .690, .159, .715, .342, .501),
}  # fmt: skip

RESIDUAL = ("ColBERT-v2", "ColBERT-PLAID")  # as centroids and residual codes

PASSAGES = 8_841_823
TABLE_3 = {  # dot products per query
    "DPR-128": 8.84e6,
    "COIL-full": 45.6e6,
    "ColBERT": 4213e6,
    "CITADEL": 10.5e6,
}
TABLE_4 = {  # MRR@10, GB, GPU ms
    "fp32": (0.362, 78.3, 3.95),
    "pq2": (0.361, 13.3, 0.90),
    "pq1": (0.356, 11.0, 0.92),
}
TABLE_5 = {  # MRR@10 dev, nDCG@10 DL19, GPU ms
    "COIL-full": (0.353, 0.704, 47.9),
    "COIL-tok": (0.350, 0.660, 46.8),
    "CITADEL": (0.362, 0.687, 3.95),
    "CITADEL-tok": (0.360, 0.665, 1.64),
}
TABLE_6 = {  # document keys → MRR@10, GB, GPU ms; no pruning
    1: (0.347, 53.6, 1.28),
    3: (0.360, 136.0, 14.7),
    5: (0.364, 185.0, 18.6),
    7: (0.370, 196.0, 20.4),
    9: (0.367, 221.0, 19.6),
}
FIGURE_4 = {0.9: (0.362, 78.5, 3.95), 1.1: (0.359, 49.3, 0.61)}  # τ → MRR@10, GB, GPU ms, from the text
LARGEST_AGAINST_COIL = 8  # ratio of the largest lists' shares of all postings

NOT_COMPARABLE = (
    "The paper trains bert-base (110 M parameters) on MS MARCO and searches its 8.84 M passages. "
    "If collection, backbone or training data differs, compare orders and ratios, not values."
)
GPU_NOTE = (
    "The paper's GPU latencies were measured without synchronisation and are below the memory floor of its "
    "GPU: reading DPR-768's vectors once takes 6.7 ms, the paper reports 1.28. They are not comparable with "
    "ours, which are measured on one CPU core."
)
PER_DOCUMENT = (
    "Per document: divided by the number of documents, so that collections can be compared; a full scan of "
    "one vector per document is 1."
)
CODECS = (
    "pq2, pq1: 2 and 1 bits per dimension, 256 centroids per sub-vector of 4 and 8 dimensions. The paper's "
    "baseline is fp32, listed beside our fp16 and int8; its latency is measured on a GPU."
)
KEYS = (
    "Each model is trained with the given number of document keys, all else equal, and searched without "
    "pruning (τ = 0). Their systems are called keys-1, keys-3, …"
)
BALANCE = (
    f"In the paper COIL's largest list is {LARGEST_AGAINST_COIL} times CITADEL's, both as shares of all "
    "postings. Gini: 0 if all lists have the same size, near 1 if one list holds everything."
)
STAGES = (
    "One query at a time on one core, top 1000. The black line marks the floor: the time to read the bytes "
    "that a query touches. The paper shows encode, token retrieval, scatter and sort on a GPU; accumulate is "
    "its scatter."
)
