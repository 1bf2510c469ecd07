// "Why this document": the score in one sentence, the links drawn, the text, and what else could have matched.

import { post, newest } from "./api.js";
import { askedWords, byId, el, faint, fixed, hues, label, largestGain, marked, percent, show, strength, svg } from "./dom.js";

const ROW = 40;             // pixels a token has in the drawing
const MOST_OTHERS = 6;      // tokens drawn that were met but did not count
let opener = null, observer = null;

const load = newest((signal, query, id) => post("v1/explain", { query, id }, signal));

export async function openWhy(query, hit, button) {
  const panel = byId("why");
  opener = button;
  for (const item of byId("hits").children) item.classList.toggle("chosen", item.dataset.id === hit.id);
  panel.replaceChildren(head(hit.title || hit.id), el("p", { class: "dim" }, "Looking …"));
  show(panel, true);
  panel.focus({ preventScroll: matchMedia("(min-width: 60rem)").matches });
  try {
    const found = hit.explanation ?? (await load(query, hit.id))?.explanation;
    if (found) fillPanel(panel, hit, found);
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

function fillPanel(panel, hit, found) {
  const largest = largestGain(found), drawing = el("div", { class: "links" });
  panel.replaceChildren(
    head(hit.title || hit.id),
    el("p", {}, sentence(found)),
    hit.common ? el("p", { class: "dim small" }, apart(hit, found)) : null,
    el("h3", {}, "Which word met which"),
    drawing,
    el("p", { class: "dim small" }, "Left the query, with the key each word was looked up under and what that added; right the words of the document. ",
      "The thicker a line, the more it added.",
      found.matches.some((match) => match.postings.length > 1) ? " Dashed lines met too, but a stronger one counted." : ""),
    el("details", {}, el("summary", {}, "The same as a table"), table(found)),
    el("h3", {}, "In the document"),
    found.title ? el("p", { class: "text" }, el("b", {}, ...marked(found.title, [...found.title_spans, ...faint(found, "title")], found, largest))) : null,
    el("p", { class: "text body", tabindex: 0 }, ...marked(found.text, [...found.text_spans, ...faint(found, "text")], found, largest)),
    found.text_cut ? el("p", { class: "dim small" }, "The document is long: only the part with most words of the query is shown.") : null,
    found.cut ? el("p", { class: "dim small" }, "The document is longer than the model reads; its end plays no part.") : null,
    alternatives(found) ?? "",
    metadata(hit.metadata) ?? "");
  observer?.disconnect();
  observer = new ResizeObserver(() => drawing.replaceChildren(draw(found, drawing.clientWidth)));
  observer.observe(drawing);
}

function sentence(found) {
  if (found.score == null) return "No word of the query met this document, so it has no score.";
  const met = found.matches.filter((match) => match.gain !== 0);
  const words = met.reduce((sum, match) => sum + match.gain, 0);
  const parts = [`Score ${fixed(found.score)}`];
  if (met.length || !found.semantic) parts.push(` = ${fixed(words)} from ${met.length} of ${found.matches.length} words of the query`);
  if (found.semantic) parts.push(`${met.length ? " +" : " ="} ${fixed(found.semantic.gain)} from the overall meaning of both texts (${percent(found.semantic.share)})`);
  return `${parts.join("")}.`;
}

// What all hits have in common puts none of them before another.
function apart(hit, found) {
  const words = found.score - found.semantic.gain, meaning = found.semantic.gain - hit.common;
  return `Of the overall meaning every hit shown has ${fixed(hit.common)}. What tells this one from the others is the rest: ${fixed(words)} from words and ${fixed(meaning)} from meaning.`;
}

// ---- the drawing -----------------------------------------------------------------------------------------------------

function draw(found, width) {
  const left = rows(found), right = documentTokens(found);
  const height = Math.max(left.length, right.length, 1) * ROW;
  const at = (place, count) => ((place + 0.5) * height) / count;
  const [from, to] = [Math.min(width * 0.36, 190), width - Math.min(width * 0.34, 180)];
  const largest = Math.max(1e-9, ...found.matches.map((match) => match.gain)), colours = hues(found);
  const ends = new Map(right.map((token, place) => [token.place, at(place, right.length)]));
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": sentence(found) });
  const pick = (place) => picture.querySelectorAll("[data-match]").forEach((node) =>
    node.classList.toggle("away", place != null && !node.dataset.match.split(" ").includes(String(place))));
  for (const [row, match] of left.entries()) {
    const group = links(found.matches[match], match, [from, at(row, left.length)], [to, ends], colours[match], largest);
    picture.append(...group);
  }
  for (const [row, match] of left.entries())
    picture.append(queryLabel(found, match, from, at(row, left.length), colours[match], pick));
  for (const token of right) picture.append(documentLabel(found, token, to, ends.get(token.place)));
  return picture;
}

const rows = (found) => found.matches.map((_, place) => place);

function links(match, place, [x, y], [to, ends], hue, largest) {
  const drawn = [];
  for (const [number, posting] of match.postings.entries())
    for (const token of posting.document_tokens) {
      if (!ends.has(token)) continue;
      const end = ends.get(token), bend = (to - x) / 2;
      const counts = number === 0 && match.gain !== 0;
      drawn.push(svg("path", {
        d: `M${x + 6},${y} C${x + bend},${y} ${to - bend},${end} ${to - 6},${end}`,
        "data-match": place, class: counts ? "link" : "link other", stroke: `hsl(${hue} 65% 50%)`,
        "stroke-width": counts ? (1.5 + 7 * (strength(match.gain, largest) - 0.15)).toFixed(1) : 1,
      }, svg("title", {}, `${label(match)}: ${fixed(posting.product, 3)}${counts ? "" : " (did not count)"}`)));
    }
  return drawn.reverse();
}

function queryLabel(found, place, x, y, hue, pick) {
  const match = found.matches[place];
  const asked = askedWords(found, match) || label(match);
  const tone = match.postings.length ? "" : " none";
  return svg("g", { class: `word${tone}`, "data-match": place, onpointerenter: () => pick(place), onpointerleave: () => pick(null) },
    svg("rect", { x: 0, y: y - ROW / 2, width: x + 6, height: ROW, fill: "transparent" }),
    svg("text", { x, y: y - 2, "text-anchor": "end" }, short(asked, 18)),
    svg("text", { x, y: y + 13, "text-anchor": "end", class: "key", "--h": hue },
      match.postings.length ? `${short(label(match), 12)} +${fixed(match.gain)}` : `${short(label(match), 12)} · not here`));
}

function documentLabel(found, token, x, y) {
  const letters = token.field ? Array.from(found[token.field]) : [];
  const word = token.field ? letters.slice(token.start, token.end).join("") : token.token;
  const [before, after] = token.field
    ? [letters.slice(Math.max(token.start - 30, 0), token.start).join(""), letters.slice(token.end, token.end + 30).join("")]
    : ["", ""];
  const users = found.matches.flatMap((match, place) => match.postings.some((one) => one.document_tokens.includes(token.place)) ? [place] : []);
  return svg("g", { class: "word", "data-match": users.join(" ") },
    svg("text", { x, y: y + 4 }, short(word, 20)),
    token.field === "title" ? svg("text", { x, y: y + 17, class: "key" }, "title") : null,
    svg("title", {}, `…${before}${word}${after}…`));
}

const short = (text, most) => (Array.from(text).length > most ? `${Array.from(text).slice(0, most - 1).join("")}…` : text);

// Every token that counted, and the strongest of the others; in the order of the text.
function documentTokens(found) {
  const counted = new Set(), others = new Map();
  for (const match of found.matches)
    for (const [number, posting] of match.postings.entries())
      for (const place of posting.document_tokens.slice(0, 4))
        if (number === 0) counted.add(place);
        else others.set(place, Math.max(others.get(place) ?? -Infinity, posting.product));
  const strongest = [...others].filter(([place]) => !counted.has(place)).sort((a, b) => b[1] - a[1]).slice(0, MOST_OTHERS);
  const wanted = new Set([...counted, ...strongest.map(([place]) => place)]);
  return found.document_tokens.filter((token) => wanted.has(token.place));
}

// ---- in words --------------------------------------------------------------------------------------------------------

function table(found) {
  const known = new Map(found.document_tokens.map((token) => [token.place, token.token]));
  const body = found.matches.map((match) => {
    const best = match.postings[0];
    const met = best ? [...new Set(best.document_tokens.map((place) => known.get(place)))].join(" ") || "–" : "not here";
    return el("tr", { class: best ? "" : "dim" },
      el("td", {}, askedWords(found, match) || "–"), el("td", {}, label(match)),
      el("td", { class: "n" }, fixed(match.weight)), el("td", {}, met),
      el("td", { class: "n" }, best ? fixed(best.weight) : ""), el("td", { class: "n" }, best ? fixed(best.product, 3) : ""),
      el("td", { class: "n" }, percent(match.share)));
  });
  if (found.semantic)
    body.push(el("tr", {}, el("td", { colspan: 5 }, "overall meaning (semantic vectors)"),
      el("td", { class: "n" }, fixed(found.semantic.gain, 3)), el("td", { class: "n" }, percent(found.semantic.share))));
  const columns = ["query", "key", "weight", "document", "weight", "product", "share"];
  return el("div", { class: "wide" }, el("table", {},
    el("thead", {}, el("tr", {}, ...columns.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, ...body)));
}

function alternatives(found) {
  const lines = found.query_tokens.flatMap((token) => {
    const keys = token.alternatives.filter((one) => one.product > 0);
    return keys.length ? [el("li", {}, el("b", {}, token.token), `: ${keys.map((one) => `${one.name} (${fixed(one.product)})`).join(", ")}`)] : [];
  });
  if (!lines.length) return null;
  return el("details", {}, el("summary", {}, "What else the query could have met here"),
    el("p", { class: "dim small" }, "A query word is looked up under its strongest key only. These are the next ones, with what they would have added."),
    el("ul", {}, ...lines));
}

function metadata(fields) {
  const rows = Object.entries(fields ?? {});
  if (!rows.length) return null;
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  return el("details", {}, el("summary", {}, "Metadata"),
    el("dl", { class: "plain" }, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, text(value))])));
}
