// The "why this document" panel: the score in one sentence, a drawing of the matches, the text, and other keys.

import { post, newest } from "./api.js";
import {
  byId, el, faint, fixed, highlight, hues, label, largestGain, percent, queryWords, replace, shorten, show,
  strength, svg,
} from "./dom.js";
import { allFacts } from "./facts.js";
import { keyName, wholeWords } from "./words.js";

const ROW = 40;             // pixels per word in the drawing
const MAX_OTHERS = 6;       // words drawn that matched but did not count
let opener = null, observer = null;

const load = newest((signal, query, id) => post("v1/explain", { query, id }, signal));

export async function openWhy(query, hit, button) {
  const panel = byId("why");
  opener = button;
  for (const item of byId("hits").children) item.classList.toggle("chosen", item.dataset.id === hit.id);
  panel.replaceChildren(head(hit.title || hit.id), el("p", { class: "dim" }, "Loading …"));
  show(panel, true);
  panel.focus({ preventScroll: matchMedia("(min-width: 60rem)").matches });
  try {
    const answer = hit.explanation ? null : await load(query, hit.id);
    const explanation = hit.explanation ?? (answer && wholeWords(answer.explanation));
    if (explanation) fillPanel(panel, hit, explanation);
  } catch (error) {
    panel.replaceChildren(head(hit.title || hit.id), el("p", { class: "note bad" }, error.message));
  }
}

export function closeWhy() {
  const panel = byId("why");
  if (panel.hidden) return;
  observer?.disconnect();
  show(panel, false);
  for (const item of byId("hits").children) item.classList.remove("chosen");
  if (panel.contains(document.activeElement) || document.activeElement === document.body) opener?.focus();
  opener = null;
}

byId("why").addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    event.stopPropagation();
    closeWhy();
  }
});

const head = (title) => el("div", { class: "head" },
  el("h2", {}, title), el("button", { class: "close", "aria-label": "Close", onclick: closeWhy }, "×"));

function fillPanel(panel, hit, explanation) {
  const largest = largestGain(explanation), drawing = el("div", { class: "links" });
  const spans = (field) => [...explanation[`${field}_spans`], ...faint(explanation, field)];
  const marks = (field) => highlight(explanation[field], spans(field), explanation, largest);
  const small = (...text) => el("p", { class: "dim small" }, ...text);
  replace(panel,
    head(hit.title || hit.id),
    el("p", {}, sentence(explanation)),
    hit.common && small(commonPart(hit, explanation)),
    el("h3", {}, "Which words matched"),
    drawing,
    small("Left: the words of the query, with the key each was looked up under and what it added. Right: the words of ",
      "the document. A thicker line added more.",
      explanation.matches.some((match) => match.postings.length > 1) && " Dashed lines matched too, but a stronger match counted."),
    el("details", {}, el("summary", {}, "The same as a table"), table(explanation)),
    el("h3", {}, "In the document"),
    explanation.title && el("p", { class: "text" }, el("b", {}, ...marks("title"))),
    el("p", { class: "text body", tabindex: 0 }, ...marks("text")),
    explanation.text_cut && small("The document is long: only the part with most words of the query is shown."),
    explanation.cut && small("The document is longer than the model reads; its end is ignored."),
    alternatives(explanation),
    el("h3", {}, "Id and metadata"),
    allFacts(hit));
  observer?.disconnect();
  observer = new ResizeObserver(() => drawing.replaceChildren(draw(explanation, drawing.clientWidth)));
  observer.observe(drawing);
}

function sentence(explanation) {
  if (explanation.score == null) return "No word of the query matches this document, so it has no score.";
  const { matches, score, semantic } = explanation;
  const matched = matches.filter((match) => match.gain !== 0);
  const words = matched.reduce((sum, match) => sum + match.gain, 0);
  const parts = [`Score ${fixed(score)}`];
  if (matched.length || !semantic)
    parts.push(` = ${fixed(words)} from ${matched.length} of ${matches.length} words of the query`);
  if (semantic) {
    const sign = matched.length ? "+" : "=", share = percent(semantic.share);
    parts.push(` ${sign} ${fixed(semantic.gain)} from the overall meaning of both texts (${share})`);
  }
  return `${parts.join("")}.`;
}

// The part that all hits share does not change their order.
function commonPart(hit, explanation) {
  const words = explanation.score - explanation.semantic.gain, meaning = explanation.semantic.gain - hit.common;
  return `All hits shown share ${fixed(hit.common)} of overall meaning. The rest decides their order: `
    + `here ${fixed(words)} from words and ${fixed(meaning)} from meaning.`;
}

// ---- the drawing -----------------------------------------------------------------------------------------------------

function draw(explanation, width) {
  const left = rows(explanation), right = documentTokens(explanation);
  const height = Math.max(left.length, right.length, 1) * ROW;
  const at = (row, count) => ((row + 0.5) * height) / count;
  const [from, to] = [Math.min(width * 0.36, 190), width - Math.min(width * 0.34, 180)];
  const largest = Math.max(1e-9, ...explanation.matches.map((match) => match.gain)), colours = hues(explanation);
  const ends = new Map(right.map((token, row) => [token.position, at(row, right.length)]));
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": sentence(explanation) });
  const pick = (number) => picture.querySelectorAll("[data-match]").forEach((node) =>
    node.classList.toggle("away", number != null && !node.dataset.match.split(" ").includes(String(number))));
  for (const [row, match] of left.entries()) {
    const group = links(explanation.matches[match], match, [from, at(row, left.length)], [to, ends], colours[match], largest);
    picture.append(...group);
  }
  for (const [row, match] of left.entries())
    picture.append(queryLabel(explanation, match, from, at(row, left.length), colours[match], pick));
  for (const token of right) picture.append(documentLabel(explanation, token, to, ends.get(token.position)));
  return picture;
}

const rows = (explanation) => explanation.matches.map((_, number) => number);

function links(match, matchNumber, [x, y], [to, ends], hue, largest) {
  const drawn = [];
  for (const [number, posting] of match.postings.entries())
    for (const token of posting.document_tokens) {
      if (!ends.has(token)) continue;
      const end = ends.get(token), bend = (to - x) / 2;
      const counts = number === 0 && match.gain !== 0;
      drawn.push(svg("path", {
        d: `M${x + 6},${y} C${x + bend},${y} ${to - bend},${end} ${to - 6},${end}`,
        "data-match": matchNumber, class: counts ? "link" : "link other", stroke: `hsl(${hue} 65% 50%)`,
        "stroke-width": counts ? (1.5 + 7 * (strength(match.gain, largest) - 0.15)).toFixed(1) : 1,
      }, svg("title", {}, `${label(match)}: ${fixed(posting.product, 3)}${counts ? "" : " (did not count)"}`)));
    }
  return drawn.reverse();
}

function queryLabel(explanation, number, x, y, hue, pick) {
  const match = explanation.matches[number];
  const words = queryWords(explanation, match) || label(match);
  const tone = match.postings.length ? "" : " none";
  return svg("g", {
    class: `word${tone}`, "data-match": number, onpointerenter: () => pick(number), onpointerleave: () => pick(null),
  },
    svg("rect", { x: 0, y: y - ROW / 2, width: x + 6, height: ROW, fill: "transparent" }),
    svg("text", { x, y: y - 2, "text-anchor": "end" }, shorten(words, 18)),
    svg("text", { x, y: y + 13, "text-anchor": "end", class: "key", "--h": hue },
      match.postings.length ? `${shorten(label(match), 12)} +${fixed(match.gain)}` : `${shorten(label(match), 12)} · no match`));
}

function documentLabel(explanation, token, x, y) {
  const letters = token.field ? Array.from(explanation[token.field]) : [];
  const word = token.field ? letters.slice(token.start, token.end).join("") : token.token;
  const [before, after] = token.field
    ? [letters.slice(Math.max(token.start - 30, 0), token.start).join(""), letters.slice(token.end, token.end + 30).join("")]
    : ["", ""];
  const users = explanation.matches.flatMap((match, number) =>
    match.postings.some((posting) => posting.document_tokens.includes(token.position)) ? [number] : []);
  return svg("g", { class: "word", "data-match": users.join(" ") },
    svg("text", { x, y: y + 4 }, shorten(word, 20)),
    token.field === "title" ? svg("text", { x, y: y + 17, class: "key" }, "title") : null,
    svg("title", {}, `…${before}${word}${after}…`));
}

// Every word that counted and the strongest of the others, in the order of the text.
function documentTokens(explanation) {
  const counted = new Set(), others = new Map();
  for (const match of explanation.matches)
    for (const [number, posting] of match.postings.entries())
      for (const id of posting.document_tokens.slice(0, 4))
        if (number === 0) counted.add(id);
        else others.set(id, Math.max(others.get(id) ?? -Infinity, posting.product));
  const strongest = [...others].filter(([id]) => !counted.has(id)).sort((a, b) => b[1] - a[1]).slice(0, MAX_OTHERS);
  const drawn = new Set([...counted, ...strongest.map(([id]) => id)]);
  return explanation.document_tokens.filter((token) => drawn.has(token.position));
}

// ---- tables ----------------------------------------------------------------------------------------------------------

function table(explanation) {
  const words = new Map(explanation.document_tokens.map((token) => [token.position, token.token]));
  const body = explanation.pieces.map((match) => {
    const best = match.postings[0];
    const matched = best ? [...new Set(best.document_tokens.map((id) => words.get(id)))].join(" ") || "–" : "no match";
    return el("tr", { class: best ? "" : "dim" },
      el("td", {}, queryWords(explanation, match) || "–"), el("td", {}, label(match)),
      el("td", { class: "n" }, fixed(match.weight)), el("td", {}, matched),
      el("td", { class: "n" }, best ? fixed(best.weight) : ""), el("td", { class: "n" }, best ? fixed(best.product, 3) : ""),
      el("td", { class: "n" }, percent(match.share)));
  });
  if (explanation.semantic)
    body.push(el("tr", {}, el("td", { colspan: 5 }, "overall meaning (semantic vectors)"),
      el("td", { class: "n" }, fixed(explanation.semantic.gain, 3)), el("td", { class: "n" }, percent(explanation.semantic.share))));
  const columns = ["query", "key", "weight", "document", "weight", "product", "share"];
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Matches as a table" }, el("table", {},
    el("thead", {}, el("tr", {}, ...columns.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, ...body)));
}

function alternatives(explanation) {
  const lines = explanation.query_tokens.flatMap((token) => {
    const keys = token.alternatives.filter((key) => key.product > 0);
    const list = keys.map((key) => `${keyName(key.name)} (${fixed(key.product)})`).join(", ");
    return keys.length ? [el("li", {}, el("b", {}, token.token), `: ${list}`)] : [];
  });
  if (!lines.length) return null;
  return el("details", {}, el("summary", {}, "Other keys that would have matched"),
    el("p", { class: "dim small" }, "A query word is looked up under its strongest keys only. These are the next ones, with what they would have added."),
    el("ul", {}, ...lines));
}
