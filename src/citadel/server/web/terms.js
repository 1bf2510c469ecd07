// Plain words for technical terms.

export const ROUTERS = {
  bm25: ["BM25", "Every word is its own key; rare words count more."],
  dynamic: ["keys chosen by a model", "A model files every word under a few keys (router “dynamic”, CITADEL)."],
  static: ["same words", "Every word is its own key; meaning decides how much it counts (router “static”, COIL)."],
  all_to_all: ["every word with every word", "Each query word takes the nearest document word (router “all_to_all”, ColBERT)."],
  centroid: ["every word with the nearest words", "Documents with a word near a query word are compared word by word (router “centroid”, ColBERT-v2 and PLAID)."],
  sparse: ["weighted keys", "A text has weighted keys and no vectors (router “sparse”, SPLADE)."],
  none: ["overall meaning", "Texts are compared as a whole, not word by word (router “none”, DPR)."],
};

// How an index matches, for the empty state. index.html has the text of "dynamic".
export const INTRO = {
  bm25: "Every word is its own key, reduced to its stem. A word of your query matches the same word in a document. "
    + "Rare words add more than common ones, and repeated words add more again.",
  static: "Every word is its own key. A word of your query matches the same word in a document, and the closer the "
    + "two are in meaning, the more it adds to the document’s score.",
  all_to_all: "Every word of your query is matched with the word of a document that is nearest in meaning; the "
    + "nearer it is, the more it adds to the document’s score.",
  sparse: "Every text is filed under keys: words that say what it is about, each with a weight. A key that your "
    + "query and a document share adds to the document’s score.",
  none: "Your query and every document are compared by their overall meaning. Single words are not compared, so "
    + "this index can say how close two texts are, but not which words made it so.",
};

const INSTRUCTIONS = { avx512vnni: "AVX-512 VNNI", avx2: "AVX2", portable: "no vector instructions" };

export const routerName = (router) => ROUTERS[router]?.[0] ?? router;
export const routerNote = (router) => ROUTERS[router]?.[1] ?? "";
export const instructionName = (set) => INSTRUCTIONS[set] ?? set;
