// The server's JSON API (docs/reference/http.md), with the token where one is asked for.

import { byId, show } from "./dom.js";

const TOKEN = "citadel-token";

export class ApiError extends Error {
  constructor(message, status, code, retryAfter) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

export const post = (path, body, signal) => ask(path, { method: "POST", body: JSON.stringify(body), signal });
export const get = (path, signal) => ask(path, { method: "GET", signal });

async function ask(path, options) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...(options.body && { "Content-Type": "application/json" }), ...(token && { Authorization: `Bearer ${token}` }) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running?", 0, "network", 2);
  }
  if (!answer.ok) throw await problem(answer);
  return answer.json();
}

async function problem(answer) {
  const told = await answer.json().then((body) => body.error, () => null);
  if (answer.status === 401) show(byId("access"), true);
  const wait = Number(answer.headers.get("Retry-After")) || (answer.status === 503 ? 1 : 0);
  return new ApiError(told?.message ?? `The server answered ${answer.status}.`, answer.status, told?.code ?? "", wait);
}

// The token is kept for this tab only, and never stands in an address.
export function askForToken(then) {
  byId("access").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, byId("token").value.trim());
    byId("token").value = "";
    show(byId("access"), false);
    then();
  });
}

// Runs the newest call only: an older one that still waits is cancelled, so that answers never come out of order.
export function newest(work) {
  let controller = null;
  const run = async (...parts) => {
    controller?.abort();
    const own = (controller = new AbortController());
    try {
      return await work(own.signal, ...parts);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  };
  return Object.assign(run, { cancel: () => controller?.abort() });
}
