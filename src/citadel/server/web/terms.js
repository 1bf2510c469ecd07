// Plain words for technical terms.

export const ROUTERS = {
  bm25: ["BM25", "Every word is its own key; rare words count more."],
  dynamic: ["keys chosen by a model", "A model files every word under a few keys (router “dynamic”, CITADEL)."],
  static: ["same words", "Every word is its own key; meaning decides how much it counts (router “static”, COIL)."],
  all_to_all: ["every word with every word", "Each query word takes the nearest document word (router “all_to_all”, ColBERT)."],
  sparse: ["weighted keys", "A text has weighted keys and no vectors (router “sparse”, SPLADE)."],
  none: ["overall meaning", "Texts are compared as a whole, not word by word (router “none”, DPR)."],
};

const INSTRUCTIONS = { avx512vnni: "AVX-512 VNNI", avx2: "AVX2", portable: "no vector instructions" };

export const routerName = (router) => ROUTERS[router]?.[0] ?? router;
export const routerNote = (router) => ROUTERS[router]?.[1] ?? "";
export const instructionName = (set) => INSTRUCTIONS[set] ?? set;
