// Any text with its keys; the slider prunes on the page, without asking the server again.

import { newest, post } from "./api.js";
import { byId, el, fixed, plural, show, strength, whole } from "./dom.js";

const PAUSE = 250;

export function startText(state) {
  const input = byId("text-input"), slider = byId("tau");
  let timer = 0, found = null, asked = "", touched = false;

  const load = newest((signal, text, side) => post("v1/explain/text", { text, side }, signal));
  const side = () => document.querySelector("#text-side input:checked").value;

  async function ask() {
    const wanted = JSON.stringify([input.value, side()]);
    if (wanted === asked && found) return;
    asked = wanted;
    try {
      const answer = input.value.trim() ? await load(input.value, side()) : null;
      if (answer === undefined) return;  // a newer one runs
      found = answer?.explanation ?? null;
      show(byId("text-problem"), false);
      setSlider();
    } catch (error) {
      found = null;
      byId("text-problem").replaceChildren(`${error.message} `, el("button", { onclick: () => { asked = ""; ask(); } }, "Try again"));
      show(byId("text-problem"), true);
    }
    render();
  }

  // The slider reaches just beyond the largest weight and starts at the index's own τ.
  function setSlider() {
    const prunes = found?.router === "dynamic" && found.side === "document";
    show(byId("tau-control"), prunes);
    if (!prunes) return;
    const largest = Math.max(0, ...found.tokens.flatMap((token) => token.keys.map((key) => key.weight)));
    slider.max = Math.max(1, Math.ceil(largest * 10 + 1) / 10);
    if (!touched) slider.value = found.tau;
  }

  function render() {
    show(byId("text-tau"), found?.router === "dynamic");
    const tau = Number(slider.value), prunes = found?.router === "dynamic" && found.side === "document";
    byId("tau-value").textContent = tau.toFixed(2);
    const kept = (key) => (prunes ? key.weight > tau && !key.repeated : key.kept);
    const tokens = found?.tokens ?? [];
    const largest = Math.max(0, ...tokens.flatMap((token) => token.keys.map((key) => key.weight)));
    byId("tokens").replaceChildren(...tokens.map((token) => block(found, token, kept, largest)));
    byId("whole-keys").replaceChildren(...wholeKeys(found));
    byId("text-status").textContent = found ? summary(tokens, kept, prunes, found) : "Type a text to see its keys.";
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE);
  });
  byId("text-side").addEventListener("change", ask);
  slider.addEventListener("input", () => {
    touched = true;
    render();
  });

  return { open: ask };
}

function block(found, token, kept, largest) {
  const letters = Array.from(found.text), keys = token.keys.filter(kept);
  const word = token.start == null ? token.token : letters.slice(token.start, token.end).join("");
  const joined = token.token?.startsWith("##") ? " joined" : "";
  const grey = keys.length ? "" : " pruned";
  return el("span", { class: `token${joined}${grey}${token.start == null ? " special" : ""}`, title: token.token },
    el("span", { class: "word" }, word),
    ...keys.map((key) => el("span", { class: "key", "--a": (0.7 * strength(key.weight, largest)).toFixed(2) },
      key.name, el("small", {}, fixed(key.weight)))));
}

function wholeKeys(found) {
  if (!found?.keys.length) return [];
  const largest = found.keys[0].weight;
  return [el("h3", {}, "Keys of the whole text"), el("p", { class: "tokens" }, ...found.keys.slice(0, 200).map((key) =>
    el("span", { class: "key", "--a": (0.7 * strength(key.weight, largest)).toFixed(2) }, key.name, el("small", {}, fixed(key.weight)))))];
}

function summary(tokens, kept, prunes, found) {
  const words = tokens.filter((token) => token.start != null);
  const alive = words.filter((token) => token.keys.some(kept)).length;
  const entries = tokens.reduce((sum, token) => sum + token.keys.filter(kept).length, 0);
  const all = tokens.reduce((sum, token) => sum + token.keys.length, 0);
  if (found.keys.length) return `${plural(found.keys.length, "key")} for the whole text.`;
  if (found.router === "bm25") return `${plural(words.length, "word")}. The weight says how rare a word is in this index; words such as “the” are left out.`;
  if (!all) return "This index gives single words no keys: it compares texts by their overall meaning.";
  const cut = found.cut ? " The text is longer than the model reads; the rest is cut." : "";
  const of = prunes ? ` of ${whole(all)}` : "";
  return `${alive} of ${plural(words.length, "token")} (words, parts of words, signs) have a key; ${whole(entries)}${of} entries in all.${cut}`;
}
