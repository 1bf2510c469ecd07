// Whole words: joins the word pieces of an explanation ("hyper", "##sonic") into the words a reader sees.

const LETTER = /[\p{L}\p{M}\p{N}]/u;
const HAN = /\p{Script=Han}/u;    // each ideograph is a word of its own
const MAX_WORD = 64;              // letters added on either side

const isLetter = (letter) => letter !== undefined && LETTER.test(letter) && !HAN.test(letter);

// The bounds of the word around a span; the span itself where it does not touch other letters.
export function wordBounds(letters, start, end) {
  const [lowest, highest] = [Math.max(start - MAX_WORD, 0), Math.min(end + MAX_WORD, letters.length)];
  if (start < end && isLetter(letters[start])) while (start > lowest && isLetter(letters[start - 1])) start--;
  if (start < end && isLetter(letters[end - 1])) while (end < highest && isLetter(letters[end])) end++;
  return [start, end];
}

// A key as readers know it: "##sonic" is the end of a word.
export const keyName = (name) => (name?.startsWith("##") ? `…${name.slice(2)}` : name);

// "hyper", "##sonic" → "hypersonic"; keys that do not continue each other are listed.
export function joinNames(names) {
  const joined = [];
  for (const name of new Set(names)) {
    if (name.startsWith("##") && joined.length) joined[joined.length - 1] += name.slice(2);
    else joined.push(keyName(name));
  }
  return [...new Set(joined)].join(", ");
}

// Tokens of the same word get the same group id; special tokens stay alone.
function groupTokens(tokens, lettersOf) {
  const groups = new Map();
  for (const token of tokens) {
    const bounds = token.start == null ? null : wordBounds(lettersOf(token.field), token.start, token.end);
    const id = bounds ? `${token.field} ${bounds}` : `special ${token.position}`;
    if (!groups.has(id)) groups.set(id, { tokens: [], bounds });
    groups.get(id).tokens.push(token);
  }
  return [...groups.values()];
}

// One token per word, numbered as its first piece, and a map from every piece to that number.
function joinTokens(tokens, lettersOf) {
  const positions = new Map();
  const words = groupTokens(tokens, lettersOf).map(({ tokens: pieces, bounds }) => {
    const [first] = pieces;
    for (const piece of pieces) positions.set(piece.position, first.position);
    if (!bounds) return first;
    const [start, end] = bounds;
    return { ...first, start, end, token: lettersOf(first.field).slice(start, end).join("") };
  });
  return { words, positions };
}

const unique = (values) => [...new Set(values)];

// The matches of one query word as one match; its first posting holds everything that counted.
function joinMatches(matches, queryPositions, documentPositions) {
  const moved = (numbers, map) => unique(numbers.map((number) => map.get(number) ?? number));
  const postings = (match) => match.postings.map((posting) =>
    ({ ...posting, document_tokens: moved(posting.document_tokens, documentPositions) }));
  const [first] = matches;
  const base = { ...first, query_tokens: moved(first.query_tokens, queryPositions), postings: postings(first) };
  if (matches.length === 1) return { ...base, name: keyName(first.name) };
  const counted = matches.filter((match) => match.gain !== 0 && match.postings.length);
  const others = matches.flatMap((match) => postings(match).slice(counted.includes(match) ? 1 : 0));
  const gain = matches.reduce((sum, match) => sum + match.gain, 0);
  const best = unique(counted.flatMap((match) => postings(match)[0].document_tokens));
  return {
    ...base,
    name: joinNames(matches.map((match) => match.name ?? `key ${match.key}`)),
    gain,
    share: first.share == null ? null : matches.reduce((sum, match) => sum + match.share, 0),
    postings: [...(counted.length ? [{ ...counted[0].postings[0], document_tokens: best, product: gain }] : []), ...others],
  };
}

// Spans widened to whole words; those of one word are added up.
function joinSpans(spans, letters, groupOf) {
  const words = new Map();
  for (const span of spans) {
    const [start, end] = wordBounds(letters, span.start, span.end);
    const known = words.get(start) ?? { start, end, gain: 0, matches: [] };
    const matches = unique([...known.matches, ...span.matches.map((match) => groupOf[match])]);
    words.set(start, { start, end: Math.max(end, known.end), gain: known.gain + span.gain, matches });
  }
  return [...words.values()];
}

function joinAlternatives(tokens, positions, words) {
  const byWord = new Map(words.map((word) => [word.position, new Map()]));
  for (const token of tokens)
    for (const key of token.alternatives ?? []) {
      const keys = byWord.get(positions.get(token.position));
      if (!(keys.get(key.name)?.product >= (key.product ?? -Infinity))) keys.set(key.name, key);
    }
  return words.map((word) => ({ ...word, alternatives: [...byWord.get(word.position).values()] }));
}

// An explanation in whole words. `pieces` keeps the matches of single keys, for the table.
export function wholeWords(explanation) {
  const letters = { query: Array.from(explanation.query ?? ""), title: Array.from(explanation.title ?? ""),
    text: Array.from(explanation.text ?? "") };
  const lettersOf = (field) => letters[field] ?? [];
  const query = joinTokens(explanation.query_tokens, lettersOf);
  const documents = joinTokens(explanation.document_tokens, lettersOf);
  const groups = new Map(), groupOf = [];
  for (const [number, match] of explanation.matches.entries()) {
    const [token] = match.query_tokens;
    const id = token === undefined ? `key ${match.key}` : `word ${query.positions.get(token)}`;
    if (!groups.has(id)) groups.set(id, []);
    groups.get(id).push(match);
    groupOf[number] = [...groups.keys()].indexOf(id);
  }
  const { snippet } = explanation;
  return {
    ...explanation,
    pieces: explanation.matches.map((match) => joinMatches([match], query.positions, documents.positions)),
    query_tokens: joinAlternatives(explanation.query_tokens, query.positions, query.words),
    document_tokens: documents.words,
    matches: [...groups.values()].map((matches) => joinMatches(matches, query.positions, documents.positions)),
    title_spans: joinSpans(explanation.title_spans, letters.title, groupOf),
    text_spans: joinSpans(explanation.text_spans, letters.text, groupOf),
    snippet: { ...snippet, spans: joinSpans(snippet.spans, Array.from(snippet.text), groupOf) },
  };
}

// The tokens of a text, one per word, with the keys of all its pieces.
export function textWords(explanation) {
  const letters = Array.from(explanation.text);
  return groupTokens(explanation.tokens, () => letters).map(({ tokens, bounds }) => ({
    ...tokens[0],
    word: bounds ? letters.slice(...bounds).join("") : tokens[0].token,
    pieces: tokens.map((token) => token.token),
    keys: tokens.flatMap((token) => token.keys),
  }));
}
