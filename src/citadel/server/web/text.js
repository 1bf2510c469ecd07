// The Text view: the keys of any text. The slider prunes in the browser, without a request.

import { newest, post } from "./api.js";
import { byId, el, fixed, plural, show, strength, whole } from "./dom.js";
import { keyName, textWords } from "./words.js";

const PAUSE = 250;

export function startText(state) {
  const input = byId("text-input"), slider = byId("tau");
  let timer = 0, explanation = null, requested = "", touched = false;

  const load = newest((signal, text, side) => post("v1/explain/text", { text, side }, signal));
  const side = () => document.querySelector("#text-side input:checked").value;

  async function update() {
    const request = JSON.stringify([input.value, side()]);
    if (request === requested && explanation) return;
    requested = request;
    try {
      const answer = input.value.trim() ? await load(input.value, side()) : null;
      if (answer === undefined) return;  // cancelled by a newer request
      explanation = answer?.explanation ?? null;
      show(byId("text-problem"), false);
      setSlider();
    } catch (error) {
      explanation = null;
      const retry = () => { requested = ""; update(); };
      byId("text-problem").replaceChildren(`${error.message} `, el("button", { onclick: retry }, "Try again"));
      show(byId("text-problem"), true);
    }
    render();
  }

  // The slider ends just above the largest weight and starts at the index's own τ.
  function setSlider() {
    const prunes = isPruned();
    show(byId("tau-control"), prunes);
    if (!prunes) return;
    const largest = Math.max(0, ...explanation.tokens.flatMap((token) => token.keys.map((key) => key.weight)));
    slider.max = Math.max(1, Math.ceil(largest * 10 + 1) / 10);
    if (!touched) slider.value = explanation.tau;
  }

  const isPruned = () => explanation?.router === "dynamic" && explanation.side === "document";

  function render() {
    show(byId("text-tau"), explanation?.router === "dynamic");
    const tau = Number(slider.value), prunes = isPruned();
    byId("tau-value").textContent = tau.toFixed(2);
    const kept = (key) => (prunes ? key.weight > tau && !key.repeated : key.kept);
    const words = explanation ? textWords(explanation) : [];
    const largest = Math.max(0, ...words.flatMap((word) => word.keys.map((key) => key.weight)));
    byId("tokens").replaceChildren(...words.map((word) => block(word, kept, largest)));
    byId("whole-keys").replaceChildren(...wholeKeys(explanation));
    byId("text-status").textContent = explanation
      ? summary(words, kept, prunes, explanation)
      : "Type a text to see its keys.";
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(update, PAUSE);
  });
  byId("text-side").addEventListener("change", update);
  slider.addEventListener("input", () => {
    touched = true;
    render();
  });

  return { open: update };
}

const keyBox = (key, largest) =>
  el("span", { class: "key", "--a": (0.7 * strength(key.weight, largest)).toFixed(2) },
    keyName(key.name), el("small", {}, fixed(key.weight)));

function block(word, kept, largest) {
  const keys = word.keys.filter(kept), isSpecial = word.start == null;
  const pieces = word.pieces.length > 1 ? `The model reads it as ${word.pieces.map(keyName).join(" + ")}.` : null;
  return el("span", {
    class: `token${keys.length ? "" : " pruned"}${isSpecial ? " special" : ""}`,
    title: isSpecial ? "A mark that the model adds to every text." : pieces,
  }, el("span", { class: "word" }, word.word), ...keys.map((key) => keyBox(key, largest)));
}

function wholeKeys(explanation) {
  if (!explanation?.keys.length) return [];
  const keys = explanation.keys.slice(0, 200);
  return [el("h3", {}, "Keys of the whole text"),
    el("p", { class: "tokens" }, ...keys.map((key) => keyBox(key, keys[0].weight)))];
}

function summary(words, kept, prunes, explanation) {
  const typed = words.filter((word) => word.start != null && /[\p{L}\p{N}]/u.test(word.word));
  const withKey = typed.filter((word) => word.keys.some(kept)).length;
  const keptKeys = words.reduce((sum, word) => sum + word.keys.filter(kept).length, 0);
  const allKeys = words.reduce((sum, word) => sum + word.keys.length, 0);
  if (explanation.keys.length) return `${plural(explanation.keys.length, "key")} for the whole text.`;
  if (explanation.router === "bm25")
    return `${plural(typed.length, "word")}. The weight says how rare a word is in this index; words such as “the” are left out.`;
  if (!allKeys) return "This index gives single words no keys: it compares texts by their overall meaning.";
  const cut = explanation.cut ? " The text is longer than the model reads; its end is ignored." : "";
  const of = prunes ? ` of ${whole(allKeys)}` : "";
  return `${withKey} of ${plural(typed.length, "word")} have a key; ${whole(keptKeys)}${of} keys are kept.${cut}`;
}
